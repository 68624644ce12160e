"""Sizes without cliffs, margins by coverage, whole GPU-hours, memory, and what a site's own runs change."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegrid.errors import InputError
from tidegrid.estimators.quantization import QuantizationEstimator
from tidegrid.estimators.quantization.algorithms import ALGORITHMS, find

A100 = {"gpu_type": "A100-80GB", "gpus": 1.0}


def run(**fields: object) -> pd.DataFrame:
    return pd.DataFrame([{"algorithm": "gptq", "model_params_b": 8.0, **A100, **fields}])


def hours(**fields: object) -> float:
    return float(QuantizationEstimator().predict(run(**fields)).iloc[0])


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_no_cliff_stands_between_sizes_and_larger_models_take_longer(algorithm: str) -> None:
    sizes = np.exp(np.linspace(np.log(0.2), np.log(700), 4000))
    X = pd.DataFrame({"algorithm": algorithm, "model_params_b": sizes, **A100})
    log_hours = np.log(QuantizationEstimator().predict(X).to_numpy())
    steps = np.diff(log_hours)
    assert (steps > 0).all()
    # a step of 0.2 % in size never moves the time by more than 0.5 %
    assert steps.max() < 0.005


@pytest.mark.parametrize("algorithm", ["gptq", "awq"])
def test_many_experts_are_quantized_one_by_one_without_a_cliff(algorithm: str) -> None:
    """From 8 on: a few experts save more of the passes over the samples than their matrices cost."""
    experts = np.arange(8.0, 300.0)
    X = pd.DataFrame({"algorithm": algorithm, "model_params_b": 30.0, "num_experts": experts, **A100})
    times = QuantizationEstimator().predict(X).to_numpy()
    assert (np.diff(times) >= -1e-12).all()
    assert np.max(times[1:] / times[:-1]) < 1.35
    assert times[-1] > 3 * hours(algorithm=algorithm, model_params_b=30.0)


def test_a_mixture_is_seen_by_its_active_parameters_where_no_experts_are_given() -> None:
    dense = QuantizationEstimator().predict_quantiles(run(model_params_b=30.0), (0.5, 0.9)).iloc[0]
    mixed = (
        QuantizationEstimator()
        .predict_quantiles(run(model_params_b=30.0, active_params_b=3.0), (0.5, 0.9))
        .iloc[0]
    )
    assert mixed[0.5] > 2 * dense[0.5]
    assert mixed[0.9] / mixed[0.5] > dense[0.9] / dense[0.5]


def test_published_medians_are_met_within_a_factor() -> None:
    """GPTQ of 175 B on one A100 took 4.2 hours (arXiv 2210.17323); AWQ of 7 B 10 to 15 minutes (AutoAWQ)."""
    assert hours(model_params_b=175.0, calib_samples=128.0) == pytest.approx(4.2, rel=0.25)
    assert hours(algorithm="awq", model_params_b=7.0) * 60 == pytest.approx(15.0, rel=0.4)
    assert hours(algorithm="bitsandbytes", model_params_b=13.0) * 3600 < 60


def test_gptq_follows_the_32_bit_speed_and_its_experts_the_host() -> None:
    """llm-compressor: 8 B in 30 minutes on an A100 and 12 on a faster part; 30 B of 128 experts in 237."""
    a100, h100 = hours(calib_samples=512.0) * 60, hours(calib_samples=512.0, gpu_type="H100") * 60
    assert a100 == pytest.approx(30.0, rel=0.25) and h100 == pytest.approx(12.4, rel=0.25)
    experts = {"model_params_b": 30.5, "active_params_b": 3.3, "num_experts": 128.0, "calib_samples": 512.0}
    slow, fast = hours(**experts) * 60, hours(**experts, gpu_type="H100") * 60
    assert fast == pytest.approx(237.0, rel=0.3) and slow / fast < 1.5


def test_slices_of_a_gpu_do_not_work_together() -> None:
    """NVIDIA MIG user guide: no peer-to-peer between instances. A seventh of the arithmetic, 5 GB of the memory."""
    fields = {"gpu_type": "nvidia_a100_1g.5gb", "calib_samples": 512.0}
    one, two, whole = hours(**fields), hours(**fields, gpus=2.0), hours(**{**fields, "gpu_type": "A100-40GB"})
    assert two == one > 3 * whole
    small, large = (run(model_params_b=p, gpu_type="nvidia_a100_1g.5gb", gpus=7.0) for p in (0.5, 30.0))
    assert QuantizationEstimator().feasible(small)["feasible"].iloc[0]
    assert not QuantizationEstimator().feasible(large)["feasible"].iloc[0]


def test_loading_gains_nothing_by_more_gpus() -> None:
    one, four = (hours(algorithm="bnb", model_params_b=70.0, gpus=g) for g in (1.0, 4.0))
    assert four == pytest.approx(one, rel=0.02)


@pytest.mark.parametrize("algorithm", ["gptq", "awq"])
def test_more_calibration_tokens_take_longer(algorithm: str) -> None:
    few = hours(algorithm=algorithm, calib_samples=128.0, calib_seqlen=512.0)
    more = hours(algorithm=algorithm, calib_samples=512.0, calib_seqlen=512.0)
    longer = hours(algorithm=algorithm, calib_samples=128.0, calib_seqlen=2048.0)
    assert more == pytest.approx(longer)
    assert few < more < 4 * few


@given(st.sampled_from(sorted(ALGORITHMS)), st.floats(0.1, 700.0), st.sampled_from([1.0, 2.0, 4.0]))
def test_twice_the_gpus_never_take_longer_and_never_fewer_gpu_hours(
    algorithm: str, size: float, gpus: float
) -> None:
    """Case D10."""
    one, two = (hours(algorithm=algorithm, model_params_b=size, gpus=g) for g in (gpus, 2 * gpus))
    assert two <= one
    assert 2 * gpus * two >= gpus * one


@given(
    st.sampled_from(["gptq", "AWQ", "bnb", "AutoRound", "something-new", ""]),
    st.floats(0.01, 2000.0),
    st.sampled_from([np.nan, 0.0, 8.0, 256.0]),
    st.sampled_from(["", "H100", "T4", "a GPU of next year"]),
)
def test_for_any_run_quantiles_are_ordered_and_the_margin_grows_with_coverage(
    algorithm: str, size: float, experts: float, gpu: str
) -> None:
    """Case D2."""
    X = run(algorithm=algorithm, model_params_b=size, num_experts=experts, gpu_type=gpu)
    kept = X.copy(deep=True)
    estimator = QuantizationEstimator()
    values = estimator.predict_quantiles(X, (0.05, 0.5, 0.9, 0.99)).to_numpy()[0]
    assert np.isfinite(values).all() and (values > 0).all() and (np.diff(values) > 0).all()
    margins = [estimator.estimate(X, coverage)["margin"].iloc[0] for coverage in (0.5, 0.8, 0.9, 0.95)]
    assert margins[0] == 1.0 and all(np.diff(margins) > 0)
    assert X.equals(kept)


def test_whole_gpu_hours_are_booked_and_what_they_were_rounded_from_is_said() -> None:
    X = pd.concat([run(model_params_b=70.0, gpus=2.0), run(algorithm="bnb")], ignore_index=True)
    told = QuantizationEstimator().estimate(X)
    assert (told["gpu_hours"] == np.maximum(np.ceil(told["rounded_from"]), 1)).all()
    assert (told["rounded_from"] == told["hours"] * X["gpus"]).all()
    assert told["note"].iloc[0] == ""
    assert "not worth a GPU-hour of its own" in told["note"].iloc[1]
    assert told["rounded_from"].iloc[1] < 0.1


def test_memory_says_which_gpu_counts_are_possible() -> None:
    X = pd.DataFrame(
        {
            "algorithm": "bitsandbytes",
            "bits": 4.0,
            "model_params_b": 70.0,
            "gpu_type": "T4",
            "gpus": [1.0, 2, 4, 8],
        }
    )
    told = QuantizationEstimator().feasible(X)
    assert told["feasible"].tolist() == [False, False, True, True] or told["feasible"].tolist() == [
        False
    ] * 2 + [
        False,
        True,
    ]
    assert "T4" in told["reason"].iloc[0] and "GiB" in told["reason"].iloc[0]
    unknown = QuantizationEstimator().feasible(X.assign(gpu_type="a GPU of next year"))
    assert unknown["feasible"].all()


def test_a_sites_own_runs_move_the_median_and_narrow_the_margin() -> None:
    past = pd.concat(
        [run(model_params_b=size) for size in (7.0, 8.0, 13.0, 34.0, 70.0) * 4], ignore_index=True
    )
    prior = QuantizationEstimator()
    slow = prior.predict(past) * 3.0
    fitted = QuantizationEstimator().fit(past, slow)
    job = run(model_params_b=32.0)
    assert fitted.predict(job).iloc[0] == pytest.approx(3 * prior.predict(job).iloc[0], rel=0.15)
    assert fitted.estimate(job)["margin"].iloc[0] < 0.75 * prior.estimate(job)["margin"].iloc[0]
    assert prior.basis(job).iloc[0] == "calibrated prior: published timings"
    assert fitted.basis(job).iloc[0] == "site history: 20 runs of gptq"
    assert fitted.basis(run(algorithm="awq")).iloc[0] == "calibrated prior: published timings"
    assert prior.basis(run(algorithm="new")).iloc[0] == "prior: no timings of this algorithm"


def test_two_own_runs_count_less_than_twenty() -> None:
    prior = QuantizationEstimator()
    job = run()
    moved = []
    for rows in (1, 2, 20):
        past = pd.concat([run()] * rows, ignore_index=True)
        fitted = QuantizationEstimator().fit(past, prior.predict(past) * 4.0)
        moved.append(fitted.predict(job).iloc[0] / prior.predict(job).iloc[0])
    assert 1.0 < moved[0] < moved[1] < moved[2] < 4.0


def test_runs_cut_short_are_lower_bounds() -> None:
    """Case D5: a run that was cancelled after ten hours says more than one that was cancelled after a minute."""
    past = pd.concat([run()] * 6, ignore_index=True)
    no = pd.Series(False, index=past.index)
    early = QuantizationEstimator().fit(past, pd.Series([1 / 60] * 6), observed=no).predict(run()).iloc[0]
    late = QuantizationEstimator().fit(past, pd.Series([10.0] * 6), observed=no).predict(run()).iloc[0]
    assert late > 8.0
    assert early >= 0.9 * QuantizationEstimator().predict(run()).iloc[0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_a_duration_that_is_none_is_refused_with_its_row(bad: float) -> None:
    """Case D7."""
    past = pd.concat([run()] * 3, ignore_index=True)
    with pytest.raises(InputError, match="row 4"):
        QuantizationEstimator().fit(past, pd.Series([1.0, 2.0, bad]))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("AWQ", "awq"),
        ("AutoAWQ", "awq"),
        ("GPTQModel", "gptq"),
        ("NF4", "bitsandbytes"),
        ("bitsandbytes NF4", "bitsandbytes"),
        ("LLM.int8()", "bitsandbytes"),
        ("GPTQ-int4", "gptq"),
        ("AWQ (AutoAWQ)", "awq"),
        ("AWQ+GPTQ", "other"),
        ("GPTQv", "other"),
        ("hqq", "other"),
        ("", "other"),
    ],
)
def test_algorithms_are_found_however_they_are_spelled(name: str, expected: str) -> None:
    assert find(name).name == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"model_params_b": 1e300},
        {"model_params_b": 1e308, "calib_samples": 1e300, "calib_seqlen": 1e300},
        {"calib_samples": 0.0, "calib_seqlen": 1e308},
        {"gpus": 1e300, "num_experts": 1e300, "active_params_b": 1e300},
        {"model_params_b": 0.001, "gpus": 1e6, "calib_samples": 0.0},
    ],
)
@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_any_size_gets_a_finite_answer(algorithm: str, fields: dict[str, float]) -> None:
    """Case D2."""
    told = QuantizationEstimator().predict_quantiles(run(algorithm=algorithm, **fields)).iloc[0]
    assert np.isfinite(told).all()
    assert 0 <= told[0.1] <= told[0.5] <= told[0.9]


def test_a_saved_estimator_predicts_the_same_bytes() -> None:
    past = pd.concat([run(model_params_b=s) for s in (3.0, 8.0, 70.0)], ignore_index=True)
    fitted = QuantizationEstimator(coverage=0.8).fit(past, pd.Series([0.3, 0.5, 4.0]))
    loaded = QuantizationEstimator.from_bundle(fitted.to_bundle())
    assert loaded.estimate(past).equals(fitted.estimate(past))
    fitted = QuantizationEstimator().fit(*sources(12, 0.0, 0.2))
    loaded = QuantizationEstimator.from_bundle(fitted.to_bundle())
    assert loaded.stretch_ == fitted.stretch_
    assert loaded.estimate(past).equals(fitted.estimate(past))


def sources(count: int, offset: float, spread: float) -> tuple[pd.DataFrame, pd.Series]:
    """Runs of GPTQ at several sites, whose log times lie evenly within ``spread`` about the shipped median."""
    past = pd.concat([run(source=f"site{i}") for i in range(count) for _ in range(3)], ignore_index=True)
    log = offset + spread * np.linspace(-1.0, 1.0, count).repeat(3)
    return past, QuantizationEstimator().predict(past) * np.exp(log)


def test_sites_that_agree_narrow_the_margin_for_a_new_one_and_sites_that_differ_widen_it() -> None:
    shipped = QuantizationEstimator().estimate(run())["margin"].iloc[0]
    close = QuantizationEstimator().fit(*sources(12, 0.0, 0.2)).estimate(run())["margin"].iloc[0]
    apart = QuantizationEstimator().fit(*sources(12, 0.0, 3.0)).estimate(run())["margin"].iloc[0]
    assert close < 0.85 * shipped and apart > 1.5 * shipped


def test_fewer_than_nine_sites_leave_the_shipped_spread() -> None:
    """With eight sites left out in turn no ninth can be promised nine chances in ten."""
    few = QuantizationEstimator().fit(*sources(8, 0.0, 0.0))
    assert few.stretch_ == {"common": 1.0, "rare": 1.0}
    enough = QuantizationEstimator().fit(*sources(9, 0.0, 0.0))
    assert enough.stretch_["common"] < 1.0 and enough.stretch_["rare"] == 1.0


def test_an_algorithm_that_nobody_has_timed_keeps_its_own_wide_spread() -> None:
    past, y = sources(12, 0.0, 3.0)
    rare = QuantizationEstimator().fit(past.assign(algorithm="autoround"), y)
    assert rare.stretch_["rare"] > 1.5
    unknown = run(algorithm="hqq")
    assert (
        rare.estimate(unknown)["margin"].iloc[0]
        == QuantizationEstimator().estimate(unknown)["margin"].iloc[0]
    )


def test_other_sites_do_not_calibrate_the_margin_of_a_site_with_runs_of_its_own() -> None:
    past, hours_ = sources(12, 0.0, 0.1)
    own = pd.concat([run(source="")] * 6, ignore_index=True)
    both = pd.concat([past, own], ignore_index=True)
    y = pd.concat([hours_, QuantizationEstimator().predict(own)], ignore_index=True)
    fitted = QuantizationEstimator().fit(both, y)
    narrowed = QuantizationEstimator.from_bundle(fitted.to_bundle())
    narrowed.stretch_ = {"common": 0.5, "rare": 0.5}
    assert narrowed.estimate(run())["margin"].iloc[0] == fitted.estimate(run())["margin"].iloc[0]


@pytest.mark.realdata
def test_sources_left_out_are_covered(shared_data) -> None:
    """The calibrated 90 % on published timings of which each source is left out in turn."""
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
    import quantization_timings as benchmark

    rows = benchmark.read(shared_data / "timings" / "quantization_runs.csv")
    rows = rows[[find(name).name in benchmark.MAIN for name in rows["algorithm"]]]
    parts = [
        benchmark.predict(rows[rows["source"] != s], rows[rows["source"] == s])
        for s in rows["source"].unique()
    ]
    told = benchmark.measures(pd.concat(parts))
    assert told["covered"] >= 0.88
    assert told["over_estimate"] <= 3.5
