"""What history teaches: a few finished jobs, users and recurring names, lower bounds, and honest bands."""

import multiprocessing
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from training_cases import history, request, requests

from tidegrid.errors import InputError
from tidegrid.estimators.testing import check_estimator
from tidegrid.estimators.training import TrainingEstimator, explain
from tidegrid.models.codec import decode, encode

LEVELS = (0.1, 0.5, 0.9)


def test_it_keeps_the_contract_of_estimators() -> None:
    check_estimator(TrainingEstimator())


def error(estimator: TrainingEstimator, X: pd.DataFrame, hours: pd.Series) -> float:
    """Median relative error."""
    return float((estimator.predict(X).to_numpy() / hours.to_numpy() - 1).__abs__().mean())


def test_a_few_finished_jobs_of_a_new_stack_move_its_estimate_at_once() -> None:
    """A stack that is twice as slow as the prior: after five jobs most of it is known, after twenty nearly all."""
    X, y = history(60, factor=2.0, noise=0.05)
    X["group"] = "slow-stack"
    later, hours = X.iloc[30:], y.iloc[30:]
    errors = [error(TrainingEstimator().fit(X.iloc[:n], y.iloc[:n]), later, hours) for n in (1, 5, 20)]
    assert error(TrainingEstimator(), later, hours) > 0.45
    assert errors[0] < 0.45 and errors[1] < 0.22 and errors[2] < 0.12


def test_another_stack_is_hardly_moved() -> None:
    X, y = history(40, factor=2.0, noise=0.05)
    X["group"] = "slow-stack"
    other = requests(20, seed=9).assign(group="another", user="dan")
    before, after = TrainingEstimator().predict(other), TrainingEstimator().fit(X, y).predict(other)
    assert float(np.log(after / before).abs().median()) < 0.5 * np.log(2)


def test_a_recurring_job_leans_on_its_own_past() -> None:
    """Numbers in a name tell its runs apart: nightly-1, nightly-2 are one job."""
    X = pd.concat([request(name=f"nightly-{i}", user="ann", group="g") for i in range(6)], ignore_index=True)
    usual = float(TrainingEstimator().predict(X).iloc[0])
    y = pd.Series(3.0 * usual, index=X.index)
    fitted = TrainingEstimator().fit(X, y)
    own, other = (
        request(name="nightly-77", user="ann", group="g"),
        request(name="else", user="bob", group="h"),
    )
    assert float(fitted.predict(own).iloc[0]) > 2.5 * usual
    assert float(fitted.predict(other).iloc[0]) < 2.0 * usual


def test_outcomes_that_arrive_one_by_one_move_offsets_and_bands_without_a_fit() -> None:
    X, y = history(80, factor=1.6, noise=0.1)
    estimator = TrainingEstimator().fit(X.iloc[:1], y.iloc[:1])
    start = error(estimator, X.iloc[60:], y.iloc[60:])
    for i in range(1, 60):
        estimator.update(X.iloc[[i]], y.iloc[[i]])
    assert error(estimator, X.iloc[60:], y.iloc[60:]) < 0.5 * start
    assert estimator.history_.finished == 60
    assert len(estimator.history_.recent) == 60
    inside = estimator.predict_quantiles(X.iloc[60:])
    share = ((y.iloc[60:] >= inside[0.1]) & (y.iloc[60:] <= inside[0.9])).mean()
    assert share >= 0.6


def test_the_band_recalibrates_when_a_site_becomes_noisier() -> None:
    X, y = history(400, noise=0.05)
    rng = np.random.default_rng(5)
    estimator = TrainingEstimator().fit(X.iloc[:150], y.iloc[:150])
    future = X.iloc[350:]
    narrow = estimator.predict_quantiles(future)
    for start in range(150, 350, 25):
        part = slice(start, start + 25)
        estimator.update(X.iloc[part], y.iloc[part] * np.exp(rng.normal(0, 0.5, 25)))
    wide = estimator.predict_quantiles(future)
    assert float((wide[0.9] / wide[0.1]).median()) > 1.5 * float((narrow[0.9] / narrow[0.1]).median())


def test_history_is_covered_as_promised() -> None:
    """Fitted on 500 noisy jobs, the 80 % band holds 74 to 86 % of 500 others."""
    X, y = history(1000, noise=0.3)
    fitted = TrainingEstimator().fit(X.iloc[:500], y.iloc[:500])
    out = fitted.predict_quantiles(X.iloc[500:])
    share = ((y.iloc[500:] >= out[0.1]) & (y.iloc[500:] <= out[0.9])).mean()
    assert 0.74 <= share <= 0.86


def test_with_too_little_history_the_basis_says_that_the_band_is_not_calibrated() -> None:
    """D3."""
    X, y = history(4)
    assert "not calibrated" in TrainingEstimator().fit(X, y).basis(X).iloc[0]
    X, y = history(60)
    assert not TrainingEstimator().fit(X, y).basis(X).str.contains("not calibrated").any()


def test_lower_bounds_only_push_up() -> None:
    """A run that was cut short below the estimate says nothing; one that outlived it raises the estimate."""
    X = pd.concat([request(group="g", user="u")] * 12, ignore_index=True)
    usual = float(TrainingEstimator().predict(X).iloc[0])
    y = pd.Series(usual, index=X.index)
    seen = pd.Series([True] * 8 + [False] * 4, index=X.index)
    base = float(TrainingEstimator().fit(X.iloc[:8], y.iloc[:8]).predict(X).iloc[0])
    for factor, expected in ((0.01, base), (0.5, base)):
        cut = y.where(seen, usual * factor)
        assert float(TrainingEstimator().fit(X, cut, observed=seen).predict(X).iloc[0]) == expected
    outlived = y.where(seen, usual * 4)
    assert float(TrainingEstimator().fit(X, outlived, observed=seen).predict(X).iloc[0]) > 1.05 * base


@pytest.mark.parametrize("rows", [300, 1200])
def test_a_censored_history_moves_the_median_by_at_most_a_tenth(rows: int) -> None:
    """Lognormal hours of spread 1, a fifth cut at random: dropping the cut ones would be 0.25 too low."""
    X = pd.concat([request()] * rows, ignore_index=True)
    usual = float(TrainingEstimator().predict(X.iloc[:1]).iloc[0])
    rng = np.random.default_rng(3)
    hours = usual * np.exp(rng.normal(0.0, 1.0, rows))
    limits = usual * np.exp(rng.normal(1.19, 1.0, rows))
    ended = hours <= limits
    assert 0.15 <= float((~ended).mean()) <= 0.25
    fitted = TrainingEstimator().fit(X, pd.Series(np.minimum(hours, limits)), observed=pd.Series(ended))
    assert abs(np.log(float(fitted.predict(X.iloc[:1]).iloc[0]) / usual)) <= 0.1


def test_a_history_of_lower_bounds_alone_raises_the_estimate() -> None:
    X = pd.concat([request(group="g")] * 6, ignore_index=True)
    usual = float(TrainingEstimator().predict(X).iloc[0])
    fitted = TrainingEstimator().fit(
        X, pd.Series(3 * usual, index=X.index), observed=pd.Series(False, index=X.index)
    )
    assert float(fitted.predict(X).iloc[0]) > 1.5 * usual


def test_what_becomes_known_later_changes_nothing_now() -> None:
    """D4: predictions at a cutoff are the same to the bit whatever the rows after it say."""
    X, y = history(300, noise=0.3)
    known = pd.Series(pd.date_range("2026-01-01", periods=300, freq="h", tz="UTC"), index=X.index)
    past = known <= known.iloc[219]
    rng = np.random.default_rng(3)
    answers = []
    for later in (y, y * np.exp(rng.normal(0, 2, 300))):
        hours = y.where(past, later)
        fitted = TrainingEstimator().fit(X[past], hours[past], known_at=known[past])
        answers.append(fitted.predict_quantiles(X[~past]))
    pd.testing.assert_frame_equal(*answers, check_exact=True)


def test_updates_keep_the_order_in_which_facts_became_known() -> None:
    """The latest rows are remembered: shuffled input with its instants gives the same as sorted input."""
    X, y = history(120)
    known = pd.Series(pd.date_range("2026-01-01", periods=120, freq="h", tz="UTC"), index=X.index)
    mixed = np.random.default_rng(0).permutation(120)
    one = TrainingEstimator().fit(X, y, known_at=known)
    two = TrainingEstimator().fit(X.iloc[mixed], y.iloc[mixed], known_at=known.iloc[mixed])
    np.testing.assert_allclose(one.predict_quantiles(X), two.predict_quantiles(X), rtol=1e-7)


def test_columns_in_any_order_and_unseen_categories_change_nothing_in_silence() -> None:
    """D1: on a fitted predictor with a learned residual."""
    X, y = history(260)
    fitted = TrainingEstimator().fit(X, y)
    asked = requests(20, seed=4)
    usual = fitted.predict_quantiles(asked)
    pd.testing.assert_frame_equal(usual, fitted.predict_quantiles(asked[asked.columns[::-1]]))
    pd.testing.assert_frame_equal(usual, fitted.predict_quantiles(asked.assign(colour="red")))
    odd = asked.copy()
    odd.loc[0, ["user", "group", "gpu_type"]] = "never-seen"
    pd.testing.assert_frame_equal(usual.iloc[1:], fitted.predict_quantiles(odd).iloc[1:])
    with pytest.raises(InputError, match="model_params_b"):
        fitted.predict_quantiles(asked.drop(columns="model_params_b"))


def _in_child(parts: tuple[dict, pd.DataFrame]) -> np.ndarray:  # type: ignore[type-arg]
    files, X = parts
    return TrainingEstimator.from_bundle(decode(files)).predict_quantiles(X).to_numpy()


def test_it_predicts_in_forked_processes_and_in_loky() -> None:
    """D8: no hang, and the same numbers, after LightGBM has run in the parent."""
    from joblib import Parallel, delayed

    X, y = history(220)
    fitted = TrainingEstimator().fit(X, y)
    asked = requests(10, seed=2)
    here = fitted.predict_quantiles(asked).to_numpy()
    files = encode(fitted.to_bundle())
    if "fork" in multiprocessing.get_all_start_methods():
        with multiprocessing.get_context("fork").Pool(2) as pool:
            for there in pool.map_async(_in_child, [(files, asked)] * 2).get(timeout=120):
                np.testing.assert_array_equal(here, there)

    # a local function goes to the workers by value: they cannot import the tests
    def predicted(files: dict, X: pd.DataFrame) -> np.ndarray:  # type: ignore[type-arg]
        return TrainingEstimator.from_bundle(decode(files)).predict_quantiles(X).to_numpy()

    for there in Parallel(n_jobs=2, backend="loky", timeout=120)(
        delayed(predicted)(files, asked) for _ in range(2)
    ):
        np.testing.assert_array_equal(here, there)


def test_a_saved_version_predicts_the_same_in_a_fresh_process_and_is_small(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """D9: no pickle, the same bytes of prediction, under 2 MB for a history of 400 jobs."""
    X, y = history(400)
    fitted = TrainingEstimator().fit(X, y)
    files = encode(fitted.to_bundle())
    assert sum(len(data) for data in files.values()) < 2e6
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    asked = requests(5, seed=8)
    asked.to_json(tmp_path / "asked.txt", orient="split", double_precision=15)
    code = (
        "import sys, pandas as pd, pathlib\n"
        "from tidegrid.models.codec import decode\n"
        "from tidegrid.estimators.training import TrainingEstimator\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "files = {p.name: p.read_bytes() for p in folder.iterdir() if p.name != 'asked.txt'}\n"
        "X = pd.read_json(folder / 'asked.txt', orient='split', precise_float=True)\n"
        "out = TrainingEstimator.from_bundle(decode(files)).predict_quantiles(X)\n"
        "print(*[float(v).hex() for v in out.to_numpy().ravel()])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    again = pd.read_json(tmp_path / "asked.txt", orient="split", precise_float=True)
    here = [float(v).hex() for v in fitted.predict_quantiles(again).to_numpy().ravel()]
    assert done.stdout.split() == here


def test_a_loaded_version_keeps_its_calibration() -> None:
    """A later product calibrates otherwise; a version that was saved before predicts as before."""
    files = encode(TrainingEstimator(calibration={"constants": {"efficiency": 0.5}}).to_bundle())
    loaded = TrainingEstimator.from_bundle(decode(files))
    assert loaded._cal().constants["efficiency"] == 0.5
    assert float(loaded.predict(request()).iloc[0]) > float(TrainingEstimator().predict(request()).iloc[0])


def test_the_remaining_time_of_a_running_job_knows_how_long_it_has_run() -> None:
    X = pd.concat([request()] * 3, ignore_index=True)
    whole = TrainingEstimator().predict_quantiles(X)
    median = float(whole[0.5].iloc[0])
    left = TrainingEstimator().remaining_quantiles(X, pd.Series([0.0, median, 5 * median]))
    assert left[0.5].iloc[0] == pytest.approx(median, rel=0.02)
    assert 0 < left[0.5].iloc[1] < median
    assert (left.to_numpy() > 0).all() and (np.diff(left.to_numpy(), axis=1) >= 0).all()
    with pytest.raises(InputError, match="elapsed_h"):
        TrainingEstimator().remaining_quantiles(X, pd.Series([0.0, -1.0, np.nan]))


def test_an_explanation_tells_terms_in_words_and_numbers() -> None:
    X, y = history(260, factor=1.5)
    told = TrainingEstimator().fit(X, y).explain(X.iloc[:1])[0]
    for part in (
        "forward+backward",
        "·N·T",
        "of peak",
        "similar runs",
        "median",
        "band",
        "Basis: site history",
    ):
        assert part in str(told)
    assert told.band_h[0] < told.median_h < told.band_h[1]
    assert told.factor == pytest.approx(told.median_h / told.prior_h)
    assert told.terms["training_flop"] > 0 and told.similar > 0
    assert sum(told.shares.values()) == pytest.approx(1.0) and f"{told.bound}_s" in told.terms
    cold = TrainingEstimator().explain(request(variant="full_rlvr", gpus=1.0))[0]
    assert (
        "generation" in str(cold)
        and "history" not in str(cold)
        and cold.factor == pytest.approx(1.0, rel=0.25)
    )


def test_an_explanation_says_what_bounds_a_step_and_is_drawn(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Four samples of 200 tokens of a 3 B model are bound by launches, a large batch by arithmetic."""
    small = request(
        variant="lora_sft", gpu_type="H100", model_params_b=3.2, seq_len=768.0, mean_seq_len=210.0, global_batch=4.0,
        micro_batch=4.0, gpus=1.0, tokens_per_epoch_m=4.2,
    )  # fmt: skip
    told = TrainingEstimator().explain(small)[0]
    assert told.bound == "overhead" and "bound by kernel launches and the host" in str(told)
    assert "padding computes" in str(told) and told.shares["evaluation and checkpoints"] > 0
    assert TrainingEstimator().explain(request(gpus=8.0))[0].bound == "arithmetic"
    assert (
        TrainingEstimator().explain(request(variant="full_rlvr", model_params_b=0.5))[0].bound == "generation"
    )
    figure = explain.picture(told)
    shown = " ".join(axes.get_title().replace("\n", " ") for axes in figure.axes)
    assert told.basis in shown and "shares of the run" in shown
    figure.savefig(tmp_path / "told.png")
    assert (tmp_path / "told.png").stat().st_size > 5_000


def test_the_model_card_says_what_a_version_rests_on() -> None:
    X, y = history(260)
    estimator = TrainingEstimator().fit(X, y, observed=pd.Series([True] * 250 + [False] * 10, index=X.index))
    card = estimator.model_card()
    assert card["history"]["finished"] == 250 and card["history"]["lower_bounds"] == 10
    assert len(card["features"]) == 22 and len(card["variants"]) == 10
    assert card["calibration"]["rows"] > 2000
    assert "250 finished runs, 10 lower bounds" in estimator.model_card_markdown()


def test_sums_of_gpu_hours_use_means_and_medians_are_medians() -> None:
    X, _ = history(50)
    estimator = TrainingEstimator()
    assert estimator.predict_mean(X).sum() > 1.03 * estimator.predict(X).sum()
    assert (estimator.predict(X) == estimator.predict_quantiles(X)[0.5]).all()
