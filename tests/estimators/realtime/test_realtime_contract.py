"""The realtime estimator keeps the public contract."""

from tidegrid.estimators.realtime import RealtimeEstimator
from tidegrid.estimators.testing import check_estimator


def test_realtime_estimator_keeps_the_contract():
    check_estimator(RealtimeEstimator())


def test_realtime_estimator_keeps_the_contract_in_a_zone_with_holidays():
    check_estimator(RealtimeEstimator(timezone="Europe/Berlin", country="DE"))
