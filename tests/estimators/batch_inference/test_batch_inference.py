"""Prefill and decode apart, memory, more GPUs, and what a site's own jobs change."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegrid.errors import InputError
from tidegrid.estimators.base import checked_features
from tidegrid.estimators.batch_inference import BatchInferenceEstimator
from tidegrid.estimators.batch_inference.throughput import kv_bytes, phases, weight_bytes

JOB = {
    "model_params_b": 8.0,
    "precision": "bf16",
    "gpu_type": "A100-80GB",
    "gpus": 1.0,
    "prompts": 200_000.0,
    "input_tokens": 512.0,
    "output_tokens": 256.0,
}


def job(**fields: object) -> pd.DataFrame:
    return pd.DataFrame([{**JOB, **fields}])


def hours(**fields: object) -> float:
    return float(BatchInferenceEstimator().predict(job(**fields)).iloc[0])


def test_time_grows_with_prompts_and_with_tokens_of_either_kind() -> None:
    base = hours()
    assert hours(prompts=400_000.0) == pytest.approx(2 * base, rel=0.05)
    assert hours(input_tokens=1024.0) > base
    assert hours(output_tokens=512.0) > base


def test_reading_is_bound_by_arithmetic_and_writing_by_memory() -> None:
    """An H20 has a sixth of an H100's arithmetic and more bandwidth: it reads far slower, and writes no slower."""
    told = BatchInferenceEstimator().explain(pd.concat([job(gpu_type="H100"), job(gpu_type="H20")]))
    assert told["prefill_s"].iloc[1] > 4 * told["prefill_s"].iloc[0]
    few = BatchInferenceEstimator().explain(
        pd.concat([job(gpu_type="H100", prompts=16.0), job(gpu_type="H20", prompts=16.0)])
    )
    assert few["decode_s"].iloc[1] < 1.1 * few["decode_s"].iloc[0]


def test_published_throughput_is_met_within_a_factor() -> None:
    """vLLM writes thousands of tokens a second with an 8 B model on one A100, and a tenth of that with 70 B on two."""
    small = BatchInferenceEstimator().explain(job())["output_tokens_per_s"].iloc[0]
    large = (
        BatchInferenceEstimator().explain(job(model_params_b=70.0, gpus=4.0))["output_tokens_per_s"].iloc[0]
    )
    assert 2_000 < small < 12_000
    assert 400 < large < 6_000


@given(
    st.sampled_from([0.5, 8.0, 70.0, 405.0]),
    st.sampled_from(["T4", "A100-80GB", "H100", "B200", "a GPU of next year"]),
    st.sampled_from(["bf16", "fp8", "int4"]),
    st.sampled_from([1.0, 2.0, 4.0, 8.0]),
    st.floats(1.0, 1e7),
    st.floats(0.0, 8000.0),
    st.floats(0.0, 4000.0),
)
def test_twice_the_gpus_never_take_longer(
    size: float, gpu: str, precision: str, gpus: float, prompts: float, read: float, write: float
) -> None:
    """Cases D2 and D10."""
    fields = {"model_params_b": size, "gpu_type": gpu, "precision": precision, "prompts": prompts}
    X = pd.concat([job(**fields, gpus=g, input_tokens=read, output_tokens=write) for g in (gpus, 2 * gpus)])
    kept = X.copy(deep=True)
    told = BatchInferenceEstimator().predict_quantiles(X, (0.1, 0.5, 0.9)).to_numpy()
    assert np.isfinite(told).all() and (told > 0).all() and (np.diff(told, axis=1) > 0).all()
    feasible = BatchInferenceEstimator().feasible(X)["feasible"]
    if feasible.iloc[0]:
        assert feasible.iloc[1]
        assert (told[1] <= told[0] * (1 + 1e-9)).all()
    assert X.equals(kept)


def test_memory_says_which_gpu_counts_hold_the_model() -> None:
    X = pd.concat([job(model_params_b=70.0, gpus=g) for g in (1.0, 2.0, 4.0)], ignore_index=True)
    told = BatchInferenceEstimator().feasible(X)
    assert told["feasible"].tolist() == [False, True, True]
    assert "GiB" in told["reason"].iloc[0]
    assert BatchInferenceEstimator().feasible(X.assign(precision="int4"))["feasible"].all()


def test_a_mixture_of_experts_needs_the_memory_of_all_and_the_arithmetic_of_some() -> None:
    dense, mixed = (
        job(model_params_b=47.0, gpus=4.0),
        job(model_params_b=47.0, active_params_b=13.0, gpus=4.0),
    )
    told = BatchInferenceEstimator().explain(pd.concat([dense, mixed]))
    # small uneven products: faster than the dense model, slower than one of the active parameters
    assert 13 / 47 < told["prefill_s"].iloc[1] / told["prefill_s"].iloc[0] < 1.0
    assert (
        BatchInferenceEstimator()
        .feasible(job(model_params_b=400.0, active_params_b=13.0))["feasible"]
        .eq(False)
        .all()
    )


def _site(rows: int, seed: int, read: float, write: float) -> tuple[pd.DataFrame, pd.Series]:
    """A site whose prefill and decode take ``read`` and ``write`` times what the data sheet says."""
    rng = np.random.default_rng(seed)
    X = pd.concat(
        [
            job(
                prompts=float(rng.integers(20_000, 2_000_000)),
                input_tokens=float(rng.integers(50, 4000)),
                output_tokens=float(rng.integers(1, 1000)),
            )
            for _ in range(rows)
        ],
        ignore_index=True,
    )
    terms = BatchInferenceEstimator().explain(X)
    seconds = terms["start_s"] + read * terms["prefill_s"] + write * terms["decode_s"]
    return X, seconds / 3600.0 * np.exp(rng.normal(0, 0.05, rows))


def test_a_site_shows_its_throughput_of_each_phase() -> None:
    X, y = _site(60, 0, read=2.5, write=0.6)
    fitted = BatchInferenceEstimator().fit(X, y)
    new, actual = _site(40, 1, read=2.5, write=0.6)
    error = np.abs(np.log(fitted.predict(new) / actual))
    assert error.median() < 0.12
    assert fitted.basis(job()).iloc[0] == "site history: 60 jobs of the same set-up"
    assert fitted.basis(job(gpu_type="H100")).iloc[0] == "calibrated prior: data sheet, 60 jobs of this site"
    assert BatchInferenceEstimator().basis(job()).iloc[0] == "prior: data sheet"
    assert "no data sheet" in BatchInferenceEstimator().basis(job(gpu_type="a GPU of next year")).iloc[0]


def test_the_band_narrows_with_history() -> None:
    X, y = _site(60, 0, read=1.5, write=1.5)
    widths = []
    for rows in (0, 3, 60):
        estimator = BatchInferenceEstimator()
        if rows:
            estimator.fit(X.iloc[:rows], y.iloc[:rows])
        q = estimator.predict_quantiles(job()).iloc[0]
        widths.append(np.log(q[0.9] / q[0.1]))
    assert widths[0] > widths[1] > widths[2]


def test_jobs_cut_short_are_lower_bounds() -> None:
    """Case D5."""
    X, y = _site(20, 0, read=1.0, write=1.0)
    no = pd.Series(False, index=X.index)
    prior = BatchInferenceEstimator().predict(job()).iloc[0]
    early = BatchInferenceEstimator().fit(X, y * 0.01, observed=no).predict(job()).iloc[0]
    late = BatchInferenceEstimator().fit(X, y * 10.0, observed=no).predict(job()).iloc[0]
    assert early > 0.8 * prior
    assert late > 4.0 * prior


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_a_duration_that_is_none_is_refused_with_its_row(bad: float) -> None:
    """Case D7."""
    X = pd.concat([job()] * 3, ignore_index=True)
    with pytest.raises(InputError, match="row 2"):
        BatchInferenceEstimator().fit(X, pd.Series([bad, 1.0, 2.0]))


FEATURES = [f for f in BatchInferenceEstimator.features if f.dtype == "float"]


@pytest.mark.parametrize("end", ["low", "high"])
def test_any_size_that_is_allowed_gets_a_finite_answer(end: str) -> None:
    """Case D2: each feature at the end of its range, then all of them."""
    ends = {feature.name: getattr(feature, end) for feature in FEATURES}
    rows = [job(**{name: value}) for name, value in ends.items()] + [job(**ends)]
    told = BatchInferenceEstimator().predict_quantiles(
        pd.concat(rows, ignore_index=True), (0.001, 0.5, 0.999)
    )
    assert np.isfinite(told).all(axis=None)
    assert (np.diff(told, axis=1) >= 0).all()


@pytest.mark.parametrize("name", [feature.name for feature in FEATURES])
def test_a_size_beyond_any_job_is_refused_by_name(name: str) -> None:
    with pytest.raises(InputError, match=rf"row 2, {name}"):
        BatchInferenceEstimator().predict(job(**{name: 1e300}))


@pytest.mark.parametrize(
    ("precision", "size"),
    [("bf16", 2.0), ("FP16", 2.0), ("fp8_e4m3", 1.03), ("AWQ", 0.56), ("w4a16", 0.56), ("fp32", 4.0)],
)
def test_a_precisions_name_gives_its_bytes(precision: str, size: float) -> None:
    assert weight_bytes(precision) == size


def test_the_cache_of_a_token_is_that_of_published_models() -> None:
    assert kv_bytes(np.array([8.0, 70.0])) == pytest.approx([131e3, 328e3], rel=0.05)


def test_the_cache_of_a_mixture_is_that_of_its_active_size() -> None:
    """Qwen3-30B-A3B holds 48 layers × 4 heads × 128 × 2 × 2 bytes a token: 98 kB; Qwen3-235B-A22B 192 kB."""
    assert kv_bytes(np.array([3.3, 22.0])) == pytest.approx([98e3, 192e3], rel=0.1)
    fields = {"model_params_b": 235.0, "gpu_type": "H100", "precision": "fp8", "gpus": 8.0}
    fields |= {"input_tokens": 1000.0, "output_tokens": 1000.0}
    dense, mixed = hours(**fields), hours(**fields, active_params_b=22.0)
    assert mixed < dense / 2.5


def test_prompts_that_do_not_fit_together_take_turns() -> None:
    """The last turn costs its steps however few it holds."""
    fields = {"model_params_b": 30.0, "input_tokens": 100.0, "output_tokens": 1000.0, "startup_s": 0.0}
    checked = checked_features(job(**fields, prompts=1e6), BatchInferenceEstimator.features)
    room = np.ceil(phases(checked).together[0])
    full, one_more, two = (hours(**fields, prompts=n) for n in (room, room + 1, 2 * room))
    assert 1.2 * full < one_more < two


def test_slices_of_a_gpu_hold_a_copy_each() -> None:
    """NVIDIA MIG user guide: no peer-to-peer between instances."""
    slices = {"gpu_type": "nvidia_a100_3g.20gb", "startup_s": 0.0}
    one, two = hours(**slices, gpus=1.0), hours(**slices, gpus=2.0)
    assert two == pytest.approx(one / 2, rel=0.05)
    told = BatchInferenceEstimator().feasible(job(model_params_b=30.0, **slices, gpus=8.0)).iloc[0]
    assert not told["feasible"] and "each slice" in told["reason"]


def test_a_copy_over_several_nodes_waits_for_the_network() -> None:
    """405 B in 16 bits needs two nodes of H100: each doubling of GPUs of one copy keeps less than nine tenths."""
    told = BatchInferenceEstimator().explain(
        pd.concat([job(model_params_b=70.0, gpu_type="H100", gpus=g) for g in (2.0, 4.0)])
    )
    assert told["prefill_s"].iloc[0] / told["prefill_s"].iloc[1] > 1.5
    wide = BatchInferenceEstimator().explain(job(model_params_b=405.0, gpu_type="H100", gpus=16.0))
    narrow = BatchInferenceEstimator().explain(job(model_params_b=405.0, gpu_type="B200", gpus=8.0))
    flops_ratio = 8 * 2250 * 0.78 / (16 * 989 * 0.80)
    assert wide["prefill_s"].iloc[0] / narrow["prefill_s"].iloc[0] > 1.1 * flops_ratio


def test_a_split_that_is_told_is_the_one_that_counts() -> None:
    """Small models run faster as two copies than as one on two GPUs, and no split can be faster than the fastest."""
    fields = {"gpus": 2.0, "prompts": 5000.0, "startup_s": 0.0}
    free, one, two = (
        hours(**fields, **split) for split in ({}, {"gpus_per_copy": 1.0}, {"gpus_per_copy": 2.0})
    )
    assert free == pytest.approx(min(one, two)) and two > 1.05 * one


def test_a_copy_split_over_nodes_is_slower_than_within_one() -> None:
    fields = {"gpus": 2.0, "gpus_per_copy": 2.0, "startup_s": 0.0}
    assert hours(**fields, gpus_per_node=1.0) > 1.3 * hours(**fields, gpus_per_node=2.0)


def test_a_smaller_cache_holds_fewer_sequences() -> None:
    fields = {"output_tokens": 1000.0, "startup_s": 0.0}
    told = [hours(**fields, cache_gib=gib) for gib in (2.0, 8.0, 1000.0)]
    assert told[0] > 2.0 * told[1] > 2.0 * told[2] and told[2] == hours(**fields)


def test_later_prompts_are_read_while_answers_are_written() -> None:
    """A job of many batches takes less than as many jobs of one batch each."""
    fields = {"model_params_b": 30.0, "input_tokens": 2000.0, "output_tokens": 500.0, "startup_s": 0.0}
    room = phases(checked_features(job(**fields), BatchInferenceEstimator.features)).together[0]
    assert hours(**fields, prompts=50 * room) < 0.95 * 50 * hours(**fields, prompts=room)


def test_small_qwen_models_hold_half_the_cache_of_others() -> None:
    """Qwen2.5-7B: 28 layers × 4 heads × 128 × 2 × 2 bytes; 72B has the usual eight heads."""
    held = kv_bytes(np.array([7.6, 72.7, 1.5]), ["Qwen2.5-7B-Instruct", "qwen2-72b", "qwen2-1.5b"])
    assert held == pytest.approx([57e3, 328e3, 29e3], rel=0.06)


def test_a_saved_estimator_predicts_the_same_bytes() -> None:
    X, y = _site(30, 3, read=2.0, write=0.5)
    fitted = BatchInferenceEstimator().fit(X, y)
    loaded = BatchInferenceEstimator.from_bundle(fitted.to_bundle())
    assert (
        loaded.predict_quantiles(X).to_numpy().tobytes() == fitted.predict_quantiles(X).to_numpy().tobytes()
    )
