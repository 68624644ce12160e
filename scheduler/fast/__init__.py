"""The best plan that milliseconds buy, legal by construction, the same on every machine.

Jobs are put on the board, GPUs × steps as sets of bits, by their marginal objective; apps follow with the best
counts that their caps allow. Then parts of the board are ruined and recreated for a number of rounds. The search is
C++ (state.hpp is where to start reading); Python hands it the problem's arrays and reads the plan back.
"""

from tidegrid.scheduler.fast.interface import rounds_for
from tidegrid.scheduler.fast.planner import plan

__all__ = ["plan", "rounds_for"]
