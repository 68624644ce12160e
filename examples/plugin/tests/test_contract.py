"""The plugin keeps the contract, and is found under its name."""

from tidegrid.estimators.registry import load
from tidegrid.estimators.testing import check_estimator


def test_it_keeps_the_contract():
    check_estimator(load("checkpoint_eval"))
