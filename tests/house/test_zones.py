"""Time zones by name: one definition, so every room says the same of a wrong one."""

from collections.abc import Callable

import numpy as np
import pytest

from tidegrid.errors import InputError
from tidegrid.estimators.realtime.localtime import local_hours
from tidegrid.scheduler.clock import Clock
from tidegrid.scheduler.scenarios import scenario
from tidegrid.zones import zone_of


@pytest.mark.parametrize(
    "use",
    [
        zone_of,
        lambda name: local_hours(np.arange(3), name),
        lambda name: Clock(scenario("mixed_control"), name),
    ],
)
@pytest.mark.parametrize("name", ["Berlin", "", "../etc/passwd"])
def test_a_wrong_zone_is_told_in_the_same_words_everywhere(use: Callable[[str], object], name: str) -> None:
    with pytest.raises(InputError) as caught:
        use(name)
    said = "is not a time zone; give an IANA name such as UTC or Europe/Berlin"
    assert str(caught.value) == f"timezone: {name!r} {said}"
    use("Europe/Berlin")
