"""Case D3, peaks, recalibration, incremental fits, and bundles."""

import numpy as np
import pandas as pd
import pytest
from realtime_cases import LEVELS, START, ahead, frame, weekly
from scipy.stats import binom

from tidegrid.errors import InputError
from tidegrid.estimators.realtime import RealtimeEstimator, monitor
from tidegrid.estimators.realtime.intervals import GRID, at_levels, shapes
from tidegrid.models.codec import decode, encode


@pytest.mark.parametrize("size", [9, 30, 100, 1000])
def test_a_nominal_80_percent_band_covers_within_binomial_bounds(size):
    """Simulated errors of unit spread: the shape of ``size`` of them covers new ones at least nearly as it says."""
    rng = np.random.default_rng(size)
    covered = []
    for _ in range(40):
        past = rng.laplace(size=(size, 1))
        table, _ = shapes(past)
        low, high = at_levels(table, (0.1, 0.9))[0]
        new = rng.laplace(size=200)
        covered.append(np.mean((new >= low) & (new <= high)))
    assert np.mean(covered) >= 0.8 - 3 * np.sqrt(0.16 / size / 40) - 0.02
    assert np.mean(covered) <= 0.8 + max(3 * np.sqrt(0.16 / size / 40), 0.03 + 0.6 / np.sqrt(size))


def test_shapes_are_ordered_and_extend_beyond_the_grid():
    table, _ = shapes(np.random.default_rng(0).standard_t(3, size=(14, 169)))
    out = at_levels(table, (0.0001, *GRID, 0.9999))
    assert (np.diff(out, axis=1) >= 0).all()
    assert (out[:, 0] <= table[:, 0]).all() and (out[:, -1] >= table[:, -1]).all()


def test_too_few_errors_are_flagged_as_uncalibrated():
    estimator = RealtimeEstimator().fit(*frame(weekly(100)))
    assert estimator.basis(ahead(3, 100)).str.contains("uncalibrated").all()
    grown = RealtimeEstimator().fit(*frame(weekly(24 * 28)))
    assert not grown.basis(ahead(3, 24 * 28)).str.contains("uncalibrated").any()


def test_bands_cover_what_comes():
    """Twenty made-up apps, a week ahead: the 80 % band holds 72 to 88 % of 3,360 hours."""
    hours = 24 * 35
    series = [frame(weekly(hours + 168, seed=s, noise=0.15), f"app-{s}") for s in range(20)]
    X = pd.concat([x.iloc[:hours] for x, _ in series])
    estimator = RealtimeEstimator().fit(X, pd.concat([y.iloc[:hours] for _, y in series]))
    inside = []
    for s, (x, y) in enumerate(series):
        assert x["unique_id"].iloc[0] == f"app-{s}"
        out = estimator.predict_quantiles(x.iloc[hours:], LEVELS)
        inside.append(((y.iloc[hours:] >= out[0.1]) & (y.iloc[hours:] <= out[0.9])).mean())
    assert 0.72 <= np.mean(inside) <= 0.88


def test_the_peak_of_a_window_is_above_its_hours_and_covers_what_comes():
    values = weekly(24 * 35, noise=0.2)
    estimator = RealtimeEstimator().fit(*frame(values))
    start = START + pd.Timedelta(hours=len(values))
    peak = estimator.peak_quantiles("chat", start, 24, (0.1, 0.5, 0.9))
    hours = estimator.predict_quantiles(ahead(24, len(values)), (0.1, 0.5, 0.9))
    assert (peak.to_numpy() >= hours.to_numpy().max(axis=0)).all() and peak.is_monotonic_increasing
    assert peak[0.5] > hours[0.5].max()
    hits = 0
    for s in range(20):
        whole = weekly(24 * 29, seed=s, noise=0.2)
        one = RealtimeEstimator().fit(*frame(whole[:-24]))
        hits += (
            whole[-24:].max() <= one.peak_quantiles("chat", START + pd.Timedelta(days=28), 24, (0.9,))[0.9]
        )
    assert hits >= binom.ppf(0.01, 20, 0.9)


def test_a_level_shift_is_followed_within_days():
    values = weekly(24 * 35)
    values[24 * 31 :] *= 2.0
    estimator = RealtimeEstimator().fit(*frame(values))
    future = weekly(24 * 36)[24 * 35 :] * 2.0
    out = estimator.predict_quantiles(ahead(24, len(values)), (0.5,))[0.5]
    assert out.sum() == pytest.approx(future.sum(), rel=0.2)


def test_an_update_gives_what_a_fit_of_the_whole_history_gives():
    values = weekly(24 * 30)
    X, y = frame(values)
    cut = len(values) - 5
    step = RealtimeEstimator().fit(X.iloc[:cut], y.iloc[:cut])
    for i in range(cut, len(values)):
        step.update(X.iloc[[i]], y.iloc[[i]])
    whole = RealtimeEstimator().fit(X, y)
    rows = ahead(48, len(values))
    a, b = step.predict_quantiles(rows, LEVELS), whole.predict_quantiles(rows, LEVELS)
    # the pooled shape of the band stays that of the last fit
    assert np.allclose(a.to_numpy(), b.to_numpy(), rtol=0.2)
    with pytest.raises(InputError, match="already in the history"):
        step.update(X.iloc[[3]], y.iloc[[3]])


def test_hours_taken_in_one_by_one_give_the_same_bits_whether_or_not_the_estimator_was_stored_between():
    values = weekly(24 * 25, seed=7)
    values[24 * 20 : 24 * 20 + 3] = np.nan
    X, y = frame(values)
    known = 24 * 24
    one = RealtimeEstimator().fit(X[:known], y[:known])
    other = RealtimeEstimator().fit(X[:known], y[:known])
    for at in range(known, known + 4):
        one.update(X[at : at + 1], y[at : at + 1])
        other = RealtimeEstimator.from_bundle(other.to_bundle()).update(X[at : at + 1], y[at : at + 1])
    rows = ahead(48, known + 4)
    a, b = one.predict_quantiles(rows, LEVELS), other.predict_quantiles(rows, LEVELS)
    assert a.to_numpy().tobytes() == b.to_numpy().tobytes()


@pytest.mark.parametrize("place", [{}, {"timezone": "Europe/Berlin", "country": "DE"}])
def test_a_series_as_long_as_the_history_kept_is_learnt_anew_once_a_day_and_no_oftener(monkeypatch, place):
    """With a change to summer time and a public holiday (Good Friday, 3 April) among the hours taken in."""
    from tidegrid.estimators.realtime import engine, estimator

    known, more = 24 * 28, 60
    values = weekly(known + more, seed=11)
    X, y = frame(values)
    X["ds"] = pd.date_range("2026-03-05T12:00Z", periods=len(X), freq="h")

    def fitted(hours):
        return RealtimeEstimator(history_weeks=4, **place).fit(X[:hours], y[:hours])

    def told(by, at):
        ds = X["ds"].iloc[at] + pd.to_timedelta(np.arange(1, 49), "h")
        return by.predict_quantiles(pd.DataFrame({"unique_id": "chat", "ds": ds}), LEVELS).to_numpy()

    one, other = fitted(known), fitted(known)
    whole, learnt, answers = engine.learn, [], {}
    with monkeypatch.context() as patch:
        for module in (engine, estimator):
            patch.setattr(module, "learn", lambda *a, **k: learnt.append(at) or whole(*a, **k))
        for at in range(known, known + more):
            judged = one.learnt_["chat"].judged
            one.update(X[at : at + 1], y[at : at + 1])
            assert known <= len(one.series_["chat"].raw) < known + 24
            assert learnt[-1:] == [at] or one.learnt_["chat"].judged == judged
            answers[at] = told(one, at)
    assert learnt == [known + 23, known + 47]
    # stored between, it says the same to the bit
    for at in range(known, known + 26):
        other = RealtimeEstimator.from_bundle(other.to_bundle()).update(X[at : at + 1], y[at : at + 1])
    assert told(other, at).tobytes() == answers[at].tobytes()
    # at a cut it is what a fit of the history kept gives (the pool stays that of the last fit), later nearly
    for at, near in ((known + 47, 0.02), (known + 55, 0.1)):
        assert np.allclose(answers[at][:, 2], told(fitted(at + 1), at)[:, 2], rtol=near)


def test_an_unchanged_history_costs_no_refit(monkeypatch):
    from tidegrid.estimators.realtime import estimator as module

    series = [frame(weekly(24 * 20, seed=s), f"app-{s}") for s in range(4)]
    X, y = pd.concat([x for x, _ in series]), pd.concat([v for _, v in series])
    fitted = RealtimeEstimator().fit(X, y)
    learnt = []
    whole = module.learn
    monkeypatch.setattr(module, "learn", lambda one, pool: learnt.append(1) or whole(one, pool))
    fitted.fit(X, y)
    assert learnt == []
    other = y.copy()
    other.iloc[-1] *= 2
    fitted.fit(X, other)
    assert len(learnt) == 1


def test_parallel_fits_are_the_same_to_the_bit():
    series = [frame(weekly(24 * 20, seed=s), f"app-{s}") for s in range(4)]
    X, y = pd.concat([x for x, _ in series]), pd.concat([v for _, v in series])
    rows = ahead(24, 24 * 20, "app-2")
    one, two = RealtimeEstimator().fit(X, y), RealtimeEstimator(n_jobs=2).fit(X, y)
    a, b = one.predict_quantiles(rows, LEVELS), two.predict_quantiles(rows, LEVELS)
    assert a.to_numpy().tobytes() == b.to_numpy().tobytes()


def test_a_bundle_predicts_the_same_bits_with_its_holidays_and_widths():
    values = weekly(24 * 30)
    estimator = RealtimeEstimator(timezone="Europe/Berlin", country="DE").fit(*frame(values))
    record = ahead(48, len(values)).assign(y=weekly(24 * 32)[24 * 30 :] * 1.5)
    record = record.join(estimator.predict_quantiles(record, (0.1, 0.5, 0.9)))
    estimator.recalibrate(record)
    loaded = RealtimeEstimator.from_bundle(decode(encode(estimator.to_bundle())))
    rows = ahead(168, len(values))
    a, b = estimator.predict_quantiles(rows, LEVELS), loaded.predict_quantiles(rows, LEVELS)
    assert a.to_numpy().tobytes() == b.to_numpy().tobytes()
    assert estimator.peak_quantiles("chat", rows["ds"].iloc[0], 24).equals(
        loaded.peak_quantiles("chat", rows["ds"].iloc[0], 24)
    )
    assert encode(loaded.to_bundle()) == encode(estimator.to_bundle())


def record_of(y: np.ndarray, middle: np.ndarray, half: float) -> pd.DataFrame:
    X, _ = frame(y)
    return X.assign(y=y).join(pd.DataFrame({0.1: middle - half, 0.5: middle, 0.9: middle + half}))


def test_a_band_that_is_too_narrow_is_alarmed_and_widened_until_it_covers():
    rng = np.random.default_rng(1)
    y = 100 + 10 * rng.standard_normal(600)
    record = record_of(y, np.full(600, 100.0), 4.0)
    seen = monitor.watch(record)
    assert seen.loc["chat", "alarm"].startswith("band too narrow")
    factor = monitor.width_factors(record)["chat"]
    assert 2.2 < factor < 4.0
    good = record_of(y, np.full(600, 100.0), 12.8)
    assert monitor.watch(good).loc["chat", "alarm"] == ""
    assert 0.7 < monitor.width_factors(good)["chat"] < 1.4


def test_a_new_level_is_alarmed_with_its_size():
    y = np.concatenate([np.full(100, 100.0), np.full(14, 150.0)])
    alarm = monitor.watch(record_of(y, np.full(114, 100.0), 10.0)).loc["chat", "alarm"]
    assert alarm == "level shift: 14 hours in a row above the 80 % band, 50 % off the median"


def test_a_standing_bias_is_alarmed():
    rng = np.random.default_rng(2)
    y = 103 + rng.standard_normal(168)
    alarm = monitor.watch(record_of(y, np.full(168, 100.0), 10.0)).loc["chat", "alarm"]
    assert alarm.startswith("bias: the median ran below demand")


def test_skill_is_measured_against_the_four_baselines():
    values = weekly(24 * 35, noise=0.2)
    X, y = frame(values)
    cut = 24 * 34
    record = X.iloc[cut:].assign(y=y.iloc[cut:])
    out = RealtimeEstimator().fit(X.iloc[:cut], y.iloc[:cut]).predict_quantiles(record, (0.1, 0.5, 0.9))
    seen = monitor.watch(record.join(out), X.iloc[:cut].assign(y=y.iloc[:cut])).loc["chat"]
    assert seen["skill_last_value"] > 0.2 and seen["skill_last_week"] > 0.0 and seen["skill_last_day"] > -0.5


def test_a_baseline_that_is_better_is_used_and_named():
    """A random walk: nothing beats the last value, or the combination has to be as good as it."""
    rng = np.random.default_rng(4)
    values = 1000 + np.cumsum(rng.standard_normal(24 * 28) * 5)
    estimator = RealtimeEstimator().fit(*frame(values))
    row = estimator.report().loc["chat"]
    assert row["uses"] == "last value" or row["skill_last_value"] > -0.02
    assert row["uses"] == "combination" or row["uses"] in row["basis"]


def test_hours_inside_the_history_are_answered_by_the_curve_and_say_so():
    values = weekly(24 * 28)
    estimator = RealtimeEstimator().fit(*frame(values))
    rows = ahead(48, 200)
    assert estimator.basis(rows).str.contains("inside the history").all()
    out = estimator.predict_quantiles(rows, (0.1, 0.5, 0.9))
    assert np.corrcoef(out[0.5], values[200:248])[0, 1] > 0.9


def test_past_a_week_the_last_week_repeats_with_a_wider_band():
    estimator = RealtimeEstimator().fit(*frame(weekly(24 * 28)))
    out = estimator.predict_quantiles(ahead(24 * 14, 24 * 28), (0.1, 0.5, 0.9))
    first, second = out.iloc[48:144], out.iloc[48 + 168 : 144 + 168]
    assert np.allclose(first[0.5], second[0.5])
    assert ((second[0.9] - second[0.1]).to_numpy() > (first[0.9] - first[0.1]).to_numpy()).all()
