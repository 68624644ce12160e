"""A synthetic cluster from a seed: history, a queue, running jobs, traffic, a description."""

from tidegrid.data.synth.sample import SampleCluster, synthesise

__all__ = ["SampleCluster", "synthesise"]
