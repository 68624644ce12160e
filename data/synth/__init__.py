"""A believable cluster from a seed: history, a queue, running jobs, traffic, a description. All of it made up."""

from tidegrid.data.synth.sample import SampleCluster, synthesise

__all__ = ["SampleCluster", "synthesise"]
