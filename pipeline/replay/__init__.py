"""Closed-loop replay: a trace played against planning policies that do not see its durations or its demand."""

from tidegrid.pipeline.replay.run import POLICIES, Result
from tidegrid.pipeline.replay.sweep import replay, sweep
from tidegrid.pipeline.worlds.trace import World, world_from_traces

__all__ = ["POLICIES", "Result", "World", "replay", "sweep", "world_from_traces"]
