"""As-of backtests: never a row that was not yet known, and figures that mean what they say."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tidegrid.data import History, read_jobs
from tidegrid.data.synth import synthesise
from tidegrid.errors import InputError
from tidegrid.estimators.registry import Registry, load
from tidegrid.estimators.simple import PointEstimator
from tidegrid.pipeline.backtest import LEVELS, pinball
from tidegrid.pipeline.evaluate import FIGURES, evaluate, figures
from tidegrid.pipeline.naive import NaiveDemand, NaiveDurations


@pytest.fixture(scope="module")
def sample() -> Any:
    return synthesise(0, days=30)


def only(*names: str) -> Registry:
    return Registry({name: load(name) for name in names}, dict.fromkeys(names, "tidegrid"))


def changed_after(history: History, instant: pd.Timestamp) -> History:
    """Change everything that became known after an instant: ends, outcomes, traffic."""
    jobs, traffic = history.jobs, history.traffic
    late = (jobs["known_at"] > instant) & (jobs["status"] != "running")
    began = jobs["start_time"].where(jobs["start_time"].notna(), jobs["submit_time"])
    # whatever was unknown then stays unknown until then
    moved = began + (jobs["known_at"] - began) * 3 + pd.Timedelta(hours=7)
    jobs["end_time"] = jobs["end_time"].mask(late & jobs["end_time"].notna(), moved)
    jobs["known_at"] = jobs["known_at"].mask(late, moved)
    jobs["duration_s"] = jobs["duration_s"].mask(late, (moved - began).dt.total_seconds())
    future = traffic["timestamp"] + pd.Timedelta(hours=1) > instant
    traffic["value"] = traffic["value"].mask(future, traffic["value"] * 5 + 100)
    return History(jobs, traffic, checked=True)


@pytest.mark.parametrize("name", ["recurring", "training", "quantization", "batch_inference", "realtime"])
def test_nothing_that_became_known_later_changes_an_answer(sample: Any, name: str) -> None:
    """Case D4: the answers given before an instant are the same to the bit."""
    whole = History(sample.history.jobs, sample.history.traffic, checked=True)
    instant = sample.now - pd.Timedelta(days=6)
    instant = instant.floor("D")
    one = evaluate(whole, folds=3, registry=only(name)).answers
    other = evaluate(changed_after(whole, instant), folds=3, registry=only(name)).answers
    # the demand of a day is forecast at its start
    bar = instant if name != "realtime" else instant - pd.Timedelta(days=1)
    before = [frame[frame["time"] < bar] for frame in (one, other)]
    assert len(before[0]) > 20
    # a fold whose cutoff rests on the number of rows must not move either
    columns = ["time", "user", "cutoff", *LEVELS]
    left, right = (frame[columns].sort_values(["time", "user", 0.5], ignore_index=True) for frame in before)
    both = left.merge(right, on=["time", "user", "cutoff"], suffixes=("", " changed"))
    assert len(left) == len(right) and len(both) >= len(left)
    for level in LEVELS:
        assert (left[level].to_numpy() == right[level].to_numpy()).all()


def test_the_table_has_every_estimator_and_figure(sample: Any) -> None:
    found = evaluate(sample.history, folds=1, timezone="Europe/Berlin")
    table = found.table()
    assert list(table["estimator"]) == [
        "batch_inference",
        "daily_state_space",
        "quantization",
        "realtime",
        "recurring",
        "seasonal_smoothing",
        "training",
    ]
    assert list(table.columns) == ["estimator", *FIGURES] and not found.problems
    assert table[list(FIGURES)].notna().all().all()
    assert table["coverage_80"].between(0.5, 1).all()
    for by in ("user", "size", "basis", "fold"):
        part = found.table(by, 10_000)  # type: ignore[arg-type]
        assert (
            part.groupby("estimator")["rows"].sum().to_dict()
            == table.set_index("estimator")["rows"].to_dict()
        )
    shares = found.calibration()
    assert len(shares) == 7 * len(LEVELS) and shares["share"].between(0, 1).all()


def test_two_processes_find_the_same(sample: Any) -> None:
    names = only("recurring", "quantization")
    one = evaluate(sample.history, folds=2, registry=names)
    two = evaluate(sample.history, folds=2, jobs=2, registry=names)
    pd.testing.assert_frame_equal(one.answers, two.answers)


def test_the_plot_is_a_png_and_the_same_twice(sample: Any, tmp_path: Path) -> None:
    found = evaluate(sample.history, folds=1, registry=only("recurring"))
    for name in ("a.png", "b.png"):
        found.plot(tmp_path / name)
    one = (tmp_path / "a.png").read_bytes()
    assert one.startswith(b"\x89PNG") and one == (tmp_path / "b.png").read_bytes()


def test_without_rows_there_is_a_reason_and_no_table() -> None:
    found = evaluate(History(), registry=only("recurring", "realtime"))
    assert len(found.problems) == 2 and found.table().empty
    with pytest.raises(InputError, match="no answers"):
        found.plot("nowhere.png")


class Unfinished(PointEstimator):
    """A plugin whose answers are no numbers, or one too few, or whose basis is none."""

    name, kind, features = "unfinished", "any", ()
    fault = ""

    def learn(self, X: pd.DataFrame, hours: np.ndarray) -> dict[str, float]:
        return {"hours": float(np.median(hours))}

    def point(self, X: pd.DataFrame, learnt: Any) -> np.ndarray:
        return np.full(len(X), learnt["hours"])

    def predict_quantiles(self, X: pd.DataFrame, levels: Any = LEVELS) -> pd.DataFrame:
        out = super().predict_quantiles(X, levels)
        return {"nan": out * np.nan, "short": out.iloc[1:]}.get(self.fault, out)

    def basis(self, X: pd.DataFrame) -> Any:
        return "site history" if self.fault == "basis" else super().basis(X)


@pytest.mark.parametrize("fault", ["nan", "short", "basis"])
def test_a_plugin_that_answers_nonsense_is_a_problem_and_stops_no_other(
    sample: Any, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Unfinished, "fault", fault)
    both = Registry({"quantization": load("quantization"), "unfinished": Unfinished}, {})
    found = evaluate(sample.history, folds=1, registry=both)
    assert list(found.table()["estimator"]) == ["quantization"]
    assert len(found.problems) == 1 and found.problems[0].startswith("unfinished, fold 1: ")


@pytest.mark.parametrize(("folds", "share"), [(0, 0.5), (3, 0.0), (3, 1.0)])
def test_folds_and_share_out_of_range_are_refused(folds: int, share: float) -> None:
    with pytest.raises(InputError, match="folds"):
        evaluate(History(), folds=folds, share=share)


def test_an_unknown_estimator_is_refused() -> None:
    with pytest.raises(InputError, match="use one of"):
        evaluate(History(), ["nope"])


def answers(actual: list[float], median: list[float], spread: float = 2.0) -> pd.DataFrame:
    from scipy.stats import norm

    bands = np.array(median)[:, None] * np.exp(np.log(spread) * norm.ppf(LEVELS))[None, :]
    frame = pd.DataFrame({"actual": actual, "user": "u", "floor": 1 / 3600, "loss": 1.0, "naive_loss": 2.0})
    return pd.concat([frame, pd.DataFrame(bands, columns=pd.Index(LEVELS))], axis=1)


def test_figures_by_hand() -> None:
    """Medians ten times too high and in the right order: one decade off, rank 1, no skill lost."""
    out = figures(answers([1.0, 2.0, 4.0], [10.0, 20.0, 40.0]))
    assert out["median_error_log10"] == pytest.approx(1.0) and out["median_error_relative"] == pytest.approx(
        9.0
    )
    assert out["spearman"] == pytest.approx(1.0) and out["coverage_80"] == 0.0
    assert out["skill"] == pytest.approx(0.5)
    perfect = figures(answers([1.0, 2.0, 4.0], [1.0, 2.0, 4.0]))
    assert perfect["r2_log10"] == pytest.approx(1.0) and perfect["coverage_80"] == 1.0


def test_pinball_by_hand() -> None:
    """Above the quantile costs its level, below it costs the rest."""
    q = np.array([[10.0], [10.0]])
    assert pinball(np.array([12.0, 7.0]), q, (0.9,)) == pytest.approx([1.8, 0.3])


def test_the_naive_durations_prefer_user_and_size() -> None:
    X = pd.DataFrame({"user": ["a"] * 10 + ["b"] * 10, "gpus": [1.0] * 5 + [2.0] * 5 + [1.0] * 10})
    y = pd.Series([1.0] * 5 + [8.0] * 5 + [3.0] * 10)
    naive = NaiveDurations().fit(X, y, pd.Series(True, index=X.index))
    ask = pd.DataFrame({"user": ["a", "a", "b", "c"], "gpus": [1.0, 2.0, 4.0, 1.0]})
    out = naive.quantiles(ask, (0.5,))[:, 0]
    assert out[:3] == pytest.approx([1.0, 8.0, 3.0]) and out[3] == pytest.approx(3.0)


def test_an_account_stands_for_a_user_who_is_not_told() -> None:
    X = pd.DataFrame({"user": "", "group": ["a"] * 6 + ["b"] * 6, "gpus": 1.0})
    naive = NaiveDurations().fit(X, pd.Series([1.0] * 6 + [9.0] * 6), pd.Series(True, index=X.index))
    out = naive.quantiles(X.iloc[[0, 11]], (0.5,))[:, 0]
    assert out == pytest.approx([1.0, 9.0])


def test_the_naive_demand_is_last_week() -> None:
    ds = pd.date_range("2026-03-02", periods=24 * 15, freq="h", tz="UTC")
    X = pd.DataFrame({"unique_id": "s", "ds": ds})
    y = pd.Series(np.arange(len(ds)) % 168, dtype=float)
    naive = NaiveDemand().fit(X, y)
    ask = pd.DataFrame({"unique_id": "s", "ds": pd.date_range(ds[-1], periods=3, freq="h")})
    at = (len(ds) - 1 + np.arange(3)) % 168
    assert naive.quantiles(ask, (0.1, 0.9)) == pytest.approx(np.repeat(at[:, None], 2, axis=1).astype(float))


@pytest.mark.realdata
def test_a_public_trace_is_evaluated(shared_data: Path) -> None:
    """Helios: the recurring estimator beats the naive forecast on jobs that nobody had seen."""
    jobs = read_jobs(shared_data / "traces" / "helios_venus15k.csv.gz", timezone="UTC")
    found = evaluate(History(jobs, checked=True), ["recurring"], folds=4)
    (row,) = found.table().to_dict("records")
    assert not found.problems and row["rows"] > 1000
    assert row["skill"] > 0 and row["spearman"] > 0.5 and 0.7 < row["coverage_80"] < 0.9
