"""Bands of a site's own jobs cover what they promise, a new site's are wider, and both say what they rest on."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from tidegrid.estimators.base import Estimator
from tidegrid.estimators.batch_inference import BatchInferenceEstimator
from tidegrid.estimators.quantization import QuantizationEstimator
from tidegrid.estimators.quantization.timing import TERMS

SITES, FUTURE = 24, 20


def batch(rows: int, rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "model_params_b": 8.0,
            "gpu_type": "A100-80GB",
            "gpus": 2.0,
            "prompts": rng.integers(10_000, 1_000_000, rows).astype(float),
        }
    )


def quantization(rows: int, rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "algorithm": "gptq",
            "model_params_b": rng.uniform(3.0, 80.0, rows),
            "gpu_type": "A100-80GB",
            "gpus": 1.0,
        }
    )


KINDS = [(BatchInferenceEstimator, batch, 0.25), (QuantizationEstimator, quantization, 0.42)]
IDS = ["batch_inference", "quantization"]


@pytest.mark.parametrize("rows", [9, 30, 100, 1000])
@pytest.mark.parametrize(("made", "jobs", "noise"), KINDS, ids=IDS)
def test_eighty_percent_covers_within_binomial_bounds_on_both_sides(
    made: type[Estimator], jobs: Callable[..., pd.DataFrame], noise: float, rows: int
) -> None:
    """Case D3, over sites whose offsets from the prior differ."""
    rng = np.random.default_rng(rows)
    covered = []
    for _ in range(SITES if rows < 1000 else SITES // 2):
        X = jobs(rows + FUTURE, rng)
        y = made().predict(X) * np.exp(0.3 * rng.normal() + noise * rng.normal(size=len(X)))
        told = made().fit(X[:rows], y[:rows]).predict_quantiles(X[rows:], (0.1, 0.9))
        covered.append(y[rows:].between(told[0.1], told[0.9]).mean())
    # the jobs of a site share its error: the deviation is that of site means
    tolerance = 3.0 * max(np.std(covered, ddof=1), np.sqrt(0.16 / FUTURE)) / np.sqrt(len(covered))
    # few rows: the band also carries what is not known of the spread, and may be that much wide, not more
    assert 0.8 - tolerance <= np.mean(covered) <= 0.8 + tolerance + 0.4 / rows


@pytest.mark.parametrize(("made", "jobs", "noise"), KINDS, ids=IDS)
def test_a_new_sites_band_is_the_widest_and_own_jobs_narrow_it(
    made: type[Estimator], jobs: Callable[..., pd.DataFrame], noise: float
) -> None:
    rng = np.random.default_rng(0)
    X = jobs(61, rng)
    y = made().predict(X) * np.exp(noise * rng.normal(size=len(X)))
    fits = [made(), *(made().fit(X[:rows], y[:rows]) for rows in (5, 60))]
    widths = [np.ptp(np.log(f.predict_quantiles(X[60:], (0.1, 0.9)).to_numpy())) for f in fits]
    assert widths[0] > 1.3 * max(widths[1:])
    # from a few jobs on what is left is what the runs of one set-up differ by
    assert widths[2] < 1.1 * widths[1]


@pytest.mark.parametrize(("made", "jobs", "noise"), KINDS, ids=IDS)
def test_the_mean_of_runs_that_agree_is_theirs(
    made: type[Estimator], jobs: Callable[..., pd.DataFrame], noise: float
) -> None:
    X = pd.concat([jobs(1, np.random.default_rng(1))] * 60, ignore_index=True)
    mean = made().fit(X, pd.Series(1.0, index=X.index)).predict_mean(X[:1]).iloc[0]
    assert mean == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("wild", [1.0, 400.0, 1e30])
def test_a_mean_does_not_integrate_a_tail_that_no_history_shows(wild: float) -> None:
    class Wild(QuantizationEstimator):
        def predict_quantiles(self, X: pd.DataFrame, levels: tuple[float, ...] = (0.5,)) -> pd.DataFrame:
            cells = [[wild if level > 0.96 else 1.0 + 0.2 * level for level in levels]] * len(X)
            return pd.DataFrame(cells, index=X.index, columns=list(levels))

    assert Wild().predict_mean(pd.DataFrame(index=[7])).loc[7] == pytest.approx(1.1, abs=0.02)


def test_batch_jobs_say_what_bounds_them_and_what_the_band_rests_on() -> None:
    X = batch(1, np.random.default_rng(0)).assign(prompts=1e5, gpus=1.0)
    told = BatchInferenceEstimator().explain(
        pd.concat(
            [
                X.assign(input_tokens=8000.0, output_tokens=1.0),
                X.assign(input_tokens=4000.0, output_tokens=4000.0),
                X.assign(input_tokens=10.0, output_tokens=1000.0, prompts=1.0, startup_s=0.0),
                X.assign(prompts=1.0),
            ],
            ignore_index=True,
        )
    )
    expected = [
        "reading prompts: arithmetic",
        "key-value cache",
        "1 sequences together: reading the weights",
        "start-up",
    ]
    assert all(words in bound for words, bound in zip(expected, told["bound"], strict=True))
    assert told["band"].str.contains("published timings of other sites").all()


def test_other_sites_jobs_are_not_taken_for_this_sites_history() -> None:
    rng = np.random.default_rng(3)
    X = batch(40, rng).assign(source=[f"site{i % 8}" for i in range(40)])
    y = BatchInferenceEstimator().predict(X) * np.exp(0.2 * rng.normal(size=40))
    fitted = BatchInferenceEstimator().fit(X, y)
    new = X[:1].assign(source="")
    assert fitted.basis(new).iloc[0].startswith("calibrated prior: data sheet, jobs of 8 other sites")
    assert "what 8 other sites differ by" in fitted.explain(new)["band"].iloc[0]
    q = fitted.predict_quantiles(new, (0.1, 0.9)).iloc[0]
    assert q[0.9] / q[0.1] > 2.0


def test_quantization_says_what_takes_its_time() -> None:
    X = pd.DataFrame(
        {
            "algorithm": ["gptq", "gptq", "gptq", "bnb"],
            "model_params_b": [8.0, 30.0, 8.0, 70.0],
            "num_experts": [0.0, 128.0, 0.0, 0.0],
            "calib_samples": [128.0, 128.0, 4096.0, np.nan],
        }
    )
    told = QuantizationEstimator().explain(X)
    words = ["32 bits", "for each expert", "32 bits", "loading"]
    assert all(word in bound for word, bound in zip(words, told["bound"], strict=True))
    shared = told[list(TERMS[1:])].sum(axis=1) * told["gpus_factor"]
    hours = (told["load_s"] + shared) * told["history_factor"] / 3600.0
    assert np.allclose(hours, QuantizationEstimator().predict(X))
    assert "times the median: calibrated prior: published timings" in told["band"].iloc[0]


@pytest.mark.realdata
def test_published_throughputs_of_sources_left_out_are_within_a_factor_and_covered(shared_data) -> None:
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    import batch_timings as benchmark

    rows = benchmark.read(shared_data / "timings" / "batch_inference_runs.csv")
    parts = [
        benchmark.predict(rows[rows["source"] != s], rows[rows["source"] == s])
        for s in rows["source"].unique()
    ]
    told = benchmark.measures(pd.concat(parts))
    assert told["within_2x"] >= 0.80
    assert 0.75 <= told["covered"] <= 0.90
