"""Closed-loop replay: a trace played against planning policies that do not see its durations or its demand."""

from tidegrid.pipeline.replay.run import POLICIES, Result
from tidegrid.pipeline.replay.sweep import replay, sweep
from tidegrid.pipeline.worlds.trace import Trace, trace_from_files

__all__ = ["POLICIES", "Result", "Trace", "replay", "sweep", "trace_from_files"]
