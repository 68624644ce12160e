"""Every registered estimator keeps every promise of the contract."""

import pytest

from tidegrid.estimators.registry import discover
from tidegrid.estimators.testing import check_estimator

REGISTRY = discover()


@pytest.mark.parametrize("name", sorted(REGISTRY.classes))
def test_it_keeps_the_contract(name: str) -> None:
    check_estimator(REGISTRY.classes[name])


def test_every_registered_estimator_loads() -> None:
    assert [str(failure) for failure in REGISTRY.failures] == []
