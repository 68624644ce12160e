"""From requests to estimates: which estimator answers, for which blocks, and who is refused."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest

from tidegrid.data import Cluster, Pool, block_size
from tidegrid.errors import InputError
from tidegrid.estimators import Estimator
from tidegrid.estimators.recurring import RecurringJobEstimator
from tidegrid.pipeline.backtest import make, rows_of
from tidegrid.pipeline.decide import Decision
from tidegrid.pipeline.estimates import (
    LEVELS,
    block_sizes,
    estimate,
    estimate_jobs,
    explain_request,
    remaining,
)
from tidegrid.pipeline.site import Site


def test_blocks_are_the_powers_of_two_that_the_request_allows() -> None:
    assert block_sizes(1, 1) == [1]
    assert block_sizes(3, 3) == [4]
    assert block_sizes(2, 16) == [2, 4, 8, 16]
    assert block_sizes(5, 12) == [8, 16]


def test_every_request_is_estimated_or_refused(sample: Site, decision: Decision) -> None:
    estimates = decision.forecast.estimates
    answered = set(estimates.shapes["job_id"]) | set(estimates.refused["job_id"])
    assert answered == set(sample.requests["job_id"])


def test_estimates_are_positive_finite_and_never_cross(decision: Decision) -> None:
    hours = decision.forecast.estimates.hours.to_numpy()
    assert np.isfinite(hours).all()
    assert (hours > 0).all()
    assert (np.diff(hours, axis=1) >= 0).all()
    assert tuple(decision.forecast.estimates.hours.columns) == LEVELS


def test_each_kind_is_answered_by_its_own_estimator(sample: Site, decision: Decision) -> None:
    kinds = sample.requests.set_index("job_id")["kind"]
    shapes = decision.forecast.estimates.shapes
    assert (shapes["estimator"].to_numpy() == shapes["job_id"].map(kinds).to_numpy()).all()


def test_no_quantile_lies_past_the_requested_time_limit(sample: Site, fitted: dict[str, Estimator]) -> None:
    """The queue ends a job at its limit."""
    requests = sample.requests.assign(requested_walltime_s=1800.0)
    estimates = estimate_jobs(requests, sample.cluster, fitted)
    assert float(estimates.hours.to_numpy().max()) <= 0.5
    assert float(estimates.shapes["mean_h"].max()) <= 0.5
    cut = (estimates.at(0.9) >= 0.5 - 1e-9).to_numpy()
    assert cut.any()
    assert (estimates.shapes["note"].str.contains("requested time limit").to_numpy() == cut).all()
    free = estimate_jobs(sample.requests.assign(requested_walltime_s=1e9), sample.cluster, fitted)
    assert not free.shapes["note"].str.contains("requested time limit").any()


def test_a_request_without_features_is_answered_from_history_and_says_so(
    sample: Site, fitted: dict[str, Estimator]
) -> None:
    """D7: a duration that the workload's own estimator cannot give is replaced with a stated reason."""
    bare = sample.requests[sample.requests["kind"] == "training"].head(1).copy()
    bare["model_params_b"] = np.nan
    shapes = estimate_jobs(bare, sample.cluster, fitted).shapes
    assert set(shapes["estimator"]) == {"recurring"}
    assert shapes["note"].str.startswith("no model_params_b").all()


def test_an_estimator_that_raises_is_replaced_by_history_and_flagged(
    sample: Site, fitted: dict[str, Estimator], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **kwargs: object) -> pd.DataFrame:
        raise RuntimeError("out of order")

    monkeypatch.setattr(type(fitted["training"]), "predict_quantiles", broken)
    of_kind = sample.requests[sample.requests["kind"] == "training"].head(3)
    estimates = estimate_jobs(of_kind, sample.cluster, fitted)
    assert set(estimates.shapes["estimator"]) == {"recurring"}
    assert estimates.shapes["note"].str.contains("out of order").all()
    assert tuple(estimates.hours.columns) == LEVELS


def test_a_request_wider_than_every_pool_is_refused_with_its_reason(
    sample: Site, fitted: dict[str, Estimator]
) -> None:
    """P9: X needs more than there is; Y goes on."""
    two = sample.requests.head(2).assign(gpus=[4096, 1], min_gpus=np.nan, max_gpus=np.nan, gpu_type="")
    estimates = estimate_jobs(two, sample.cluster, fitted)
    assert list(estimates.refused["job_id"]) == [two["job_id"].iloc[0]]
    assert "4096" in estimates.refused["reason"].iloc[0]
    assert set(estimates.shapes["job_id"]) == {two["job_id"].iloc[1]}


def test_a_request_for_gpus_that_no_pool_has_is_refused_by_their_name(
    sample: Site, fitted: dict[str, Estimator]
) -> None:
    one = sample.requests.head(1).assign(gpu_type="TPUv9")
    reason = estimate_jobs(one, sample.cluster, fitted).refused["reason"].iloc[0]
    assert "TPUv9" in reason
    assert sample.cluster.pools[0].gpu_type in reason


def test_a_count_that_is_no_power_of_two_holds_the_next_block(
    sample: Site, fitted: dict[str, Estimator]
) -> None:
    one = sample.requests.head(1).assign(gpus=6, min_gpus=np.nan, max_gpus=np.nan, gpu_type="")
    assert set(estimate_jobs(one, sample.cluster, fitted).shapes["gpus"]) == {block_size(6)}


def test_an_empty_queue_gives_empty_estimates_of_the_same_schema(
    sample: Site, fitted: dict[str, Estimator], decision: Decision
) -> None:
    none = estimate_jobs(sample.requests.head(0), sample.cluster, fitted)
    assert list(none.shapes.columns) == list(decision.forecast.estimates.shapes.columns)
    assert list(none.hours.columns) == list(LEVELS)
    assert none.refused.empty


def test_no_input_is_mutated(sample: Site, fitted: dict[str, Estimator]) -> None:
    before = sample.requests.copy(deep=True)
    estimate_jobs(sample.requests, sample.cluster, fitted)
    pd.testing.assert_frame_equal(before, sample.requests)


def test_a_bad_feature_is_refused_by_row_and_name(sample: Site, fitted: dict[str, Estimator]) -> None:
    of_kind = sample.requests[sample.requests["kind"] == "training"].head(2).copy()
    of_kind["variant"] = ["full_sft", "full_magic"]
    with pytest.raises(InputError, match="variant"):
        estimate_jobs(of_kind, sample.cluster, fitted)


def test_an_overrun_job_has_time_left(sample: Site, fitted: dict[str, Estimator]) -> None:
    """P13: a job that has run past every estimate is neither done nor due in the past."""
    late = sample.running.assign(start_time=sample.now - pd.Timedelta(days=30))
    whole = estimate(sample.requests.head(0), late, sample.cluster, fitted)[1]
    left = remaining(whole, np.full(len(late), 30 * 24.0))
    assert np.isfinite(left).all()
    assert (left > 0).all()
    assert (np.diff(left, axis=1) >= 0).all()


def test_a_running_job_ends_by_its_limit_where_limits_hold() -> None:
    """The estimator keeps the first to its limit of 12 minutes, and gives the second longer than its own."""
    whole = np.tile(np.where(np.array(LEVELS) < 0.95, 0.001, 0.2), (2, 1))
    left = remaining(whole, np.array([0.05, 0.05]), np.array([0.2, 0.1]))
    assert left[0].max() <= 0.2 * 1.03 - 0.05
    assert (left[1] == remaining(whole[1:], np.array([0.05]))[0]).all() and left[1].max() > 1


def test_an_explanation_names_numbers_for_every_kind(sample: Site, fitted: dict[str, Estimator]) -> None:
    for kind in sorted(set(sample.requests["kind"])):
        one = sample.requests[sample.requests["kind"] == kind].head(1)
        text = explain_request(one, sample.cluster, fitted)
        assert any(c.isdigit() for c in text)


def test_a_pool_offers_no_block_wider_than_itself(sample: Site, fitted: dict[str, Estimator]) -> None:
    small = Cluster(pools=(Pool(id="small", gpus=3, gpu_type=sample.cluster.pools[0].gpu_type),))
    wide = sample.requests.head(3).assign(gpus=1, min_gpus=np.nan, max_gpus=8.0, gpu_type="")
    assert set(estimate_jobs(wide, small, fitted).shapes["gpus"]) <= {1, 2}


def test_durations_in_plans_are_those_for_which_jobs_hold_their_gpus(sample: Site) -> None:
    """Half of all jobs may fail, and their GPUs fall free all the same: every end is an outcome."""
    estimator = make(RecurringJobEstimator)
    rows = rows_of(estimator, sample.history)
    assert estimator.get_params()["outcome"] == "occupancy"
    assert rows.observed.all() and not rows_of(RecurringJobEstimator(), sample.history).observed.all()


def test_a_job_that_names_no_gpus_a_node_takes_its_pool_s_whatever_others_name(sample: Site) -> None:
    class Nodes(RecurringJobEstimator):
        seen: ClassVar[list[float]] = []

        def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
            self.seen.extend(X["gpus_per_node"].tolist())
            return super().predict_quantiles(X, levels)

        predict_work = predict_quantiles

    two = sample.requests.head(2).assign(gpus_per_node=[2.0, np.nan])
    estimate_jobs(two, sample.cluster, {"recurring": Nodes()})
    assert 2.0 in Nodes.seen and not np.isnan(Nodes.seen).any()
