"""The best plan that milliseconds buy, legal by construction, the same on every machine.

Jobs are put on the board, GPUs × steps as sets of bits, by their marginal objective; apps follow with the best
counts that their caps allow. Then parts of the board are ruined and recreated for a number of rounds.
"""

from tidegrid.scheduler.fast.planner import plan, rounds_for, warm_up

__all__ = ["plan", "rounds_for", "warm_up"]
