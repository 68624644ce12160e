"""How a priority changes from plan to plan."""

import numpy as np
import pytest

from tidegrid.pipeline.aging import raised
from tidegrid.pipeline.policy import MOST_AGING, Policy

PRIORITY, DAYS, HOURS = np.array([4.0, 4.0, 5.0]), np.array([400.0, 2.0, 0.0]), np.array([9.0, 1.0, 0.0])


def test_waiting_raises_a_priority_and_never_to_the_next_class() -> None:
    assert raised(PRIORITY, DAYS, HOURS, Policy(aging=0.1)).tolist() == [4 + MOST_AGING, 4.2, 5]


def test_shortness_prefers_short_jobs_and_none_is_shorter_than_a_minute() -> None:
    found = raised(PRIORITY, DAYS, HOURS, Policy(aging=0, shortness=0.5))
    assert found == pytest.approx([4 / 3, 4, 5 * 60**0.5])
