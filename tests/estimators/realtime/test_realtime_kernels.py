"""The compiled kernels against slow, obvious models of the same in Python."""

import math

import numpy as np
import pytest

from tidegrid.estimators.realtime import kernels
from tidegrid.estimators.realtime.nexthours import JUDGE

DAY, WEEK = 24, 168


@pytest.fixture(params=[30, 200, 700])
def x(request):
    rng = np.random.default_rng(request.param)
    t = np.arange(request.param)
    wave = 1.0 + 0.5 * np.sin(t / 24 * 2 * np.pi) + 0.2 * np.sin(t / 168 * 2 * np.pi)
    return np.abs(wave + 0.2 * rng.standard_normal(request.param))


def ends_of(x: np.ndarray) -> np.ndarray:
    return np.unique(np.linspace(len(x) // 2, len(x), 6).astype(np.int64))


def close(got: np.ndarray, expected: np.ndarray) -> None:
    assert np.array_equal(np.isnan(got), np.isnan(expected))
    assert np.allclose(got, expected, rtol=1e-9, atol=1e-11, equal_nan=True)


def test_seasonal_repeat_takes_the_last_period_again_and_again(x):
    ends = ends_of(x)
    for period in (1, DAY, WEEK):
        out = np.full((len(ends), 30), np.nan)
        kernels.seasonal_repeat(x, ends, period, out)
        model = np.full_like(out, np.nan)
        for o, end in enumerate(ends):
            for k in range(30):
                u = end + k
                while u >= end:
                    u -= period
                if u >= 0:
                    model[o, k] = x[u]
        close(out, model)


def test_seasonal_curve_is_the_median_of_past_periods_at_todays_level(x):
    ends = ends_of(x)
    for period, cycles, span in ((WEEK, 4, 0), (WEEK, 4, DAY), (DAY, 7, 3)):
        out = np.full((len(ends), 30), np.nan)
        kernels.seasonal_curve(x, ends, period, cycles, span, out)
        model = np.full_like(out, np.nan)
        for o, end in enumerate(ends):
            for k in range(30):
                past = []
                for c in range(1, cycles + 1):
                    u, then = end + k - period * (c + k // period), end - period * c
                    if u < 0 or then - span < 0:
                        break
                    moved = x[end - span : end].mean() - x[then - span : then].mean() if span else 0.0
                    past.append(x[u] + moved)
                if past:
                    model[o, k] = np.median(past)
        close(out, model)


def test_analogues_average_what_followed_the_nearest_windows(x):
    ends = ends_of(x)
    for window, nearest in ((DAY, 8), (WEEK, 3)):
        out = np.full((len(ends), 60), np.nan)
        kernels.analogues(x, ends, window, nearest, 48, out)
        model = np.full_like(out, np.nan)
        for o, end in enumerate(ends):
            if end - 48 - window < 48:
                continue
            now = x[end - DAY : end].mean()
            weight = 0.5 + np.arange(window) / window
            found = []
            for a in range(end - 48 - window, -1, -1):
                if (a - (end - window)) % DAY == 0:
                    then = x[a + window - DAY : a + window].mean()
                    gap = np.abs((x[a : a + window] - then) - (x[end - window : end] - now))
                    found.append((float((gap * weight).sum()), -a, x[a + window : a + window + 48] - then))
            found = sorted(found, key=lambda one: one[:2])[:nearest]
            mass = [1.0 / (distance + 1e-9 * window) for distance, _, _ in found]
            path = sum(w * p for w, (_, _, p) in zip(mass, found, strict=True)) / sum(mass) + now
            model[o] = [path[k if k < 48 else 24 + (k - 48) % DAY] for k in range(60)]
        close(out, model)


def test_level_smooths_with_the_weight_of_the_least_past_loss(x):
    ends = ends_of(x)
    out = np.full((len(ends), 3), np.nan)
    kernels.level(x, ends, out)
    loss = np.zeros(7)
    weights = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0])
    level, done = np.full(7, x[0]), 0
    for o, end in enumerate(ends):
        for t in range(done, end):
            level = level + weights * (x[t] - level)
            if t >= DAY and t % 5 == 0 and t + DAY < end:
                loss += sum(np.abs(x[t + lead] - level) for lead in (6, 12, 18, 24))
        done = int(end)
        assert np.allclose(out[o], level[np.argmin(loss)], rtol=1e-9)


def holt_winters(x, end, p, weekly, horizon, start_end):
    first = min(start_end, 2 * WEEK if start_end >= 2 * WEEK else max(DAY, start_end // DAY * DAY))
    level = x[:first].mean()
    day, week = np.zeros(DAY), np.zeros(WEEK)
    for s in range(DAY):
        same = x[:first][s::DAY]
        day[s] = (same - level).sum() / (len(same) + 0.5)
    if weekly and start_end >= 2 * WEEK:
        for t in range(first):
            week[t % WEEK] += (x[t] - level - day[t % DAY]) / (first / WEEK + 1.0)
    error, states = 0.0, []
    for t in range(end):
        error = x[t] - level - day[t % DAY] - week[t % WEEK]
        level += p[0] * error
        day[t % DAY] += p[1] * error
        week[t % WEEK] += p[2] * error
        states.append((level, day.copy(), week.copy(), error))
    level, day, week, error = states[-1]
    u = end + np.arange(horizon)
    return level + day[u % DAY] + week[u % WEEK] + error * p[3] ** (np.arange(horizon) + 1.0)


def test_holt_winters_filters_as_its_equations_say_and_its_fit_is_no_worse_than_its_guess(x):
    ends = ends_of(x)
    for weekly in (True, False):
        logits = np.array([-2.5, -1.5, -1.5, 1.5])
        out = np.full((len(ends), 30), np.nan)
        kernels.holt_winters(x, ends, logits, weekly, out)
        p = 1.0 / (1.0 + np.exp(-logits)) * np.array([1.0, 1.0, float(weekly), 1.0])
        for o, end in enumerate(ends):
            close(out[o], holt_winters(x, int(end), p, weekly, 30, int(ends[0])))
        fitted = logits.copy()
        kernels.holt_winters_fit(x, 48, 120, weekly, fitted)
        assert np.isfinite(fitted).all()


@pytest.mark.parametrize(("base", "rounds"), [(0, 1), (DAY, 1), (DAY, 5), (1, 3)])
def test_autoregression_solves_the_weighted_normal_equations_and_carries_them_forward(x, base, rounds):
    lags, ridge, low, high = np.array([1, 2, 24]), 1e-2, 0.0, 3.0
    ends = np.array([len(x)])
    out, beta = np.full((1, 30), np.nan), np.full((1, 4), np.nan)
    kernels.autoregression(x, base, lags, ridge, rounds, np.array([0]), ends, low, high, beta, out)
    start = base + 24
    if len(x) - start < 8:
        assert np.isnan(out).all()
        return
    d = x.copy() if base == 0 else np.r_[np.zeros(base), x[base:] - x[:-base]]
    rows = np.array([[*(d[t - lag] for lag in lags), 1.0] for t in range(start, len(x))])
    weight = np.ones(len(rows))
    for _ in range(rounds):
        gram = rows.T @ (weight[:, None] * rows)
        least = 1e-9 * gram[3, 3]
        penalty = ridge * np.trace(gram[:3, :3]) / 3 + least
        model = np.linalg.solve(gram + np.diag([penalty] * 3 + [least]), rows.T @ (weight * d[start:]))
        gone = np.abs(d[start:] - rows @ model)
        weight = 1.0 / np.maximum(gone, 0.3 * gone.mean() + 1e-12)
    assert np.allclose(beta[0], model, rtol=1e-7, atol=1e-10)
    path, diff = list(x), list(d)
    for k in range(30):
        back = path[len(path) - base] if base else 0.0
        value = min(max(model[3] + back + sum(model[i] * diff[-lags[i]] for i in range(3)), low), high)
        path.append(value)
        diff.append(value - back)
        assert math.isclose(out[0, k], value, rel_tol=1e-6, abs_tol=1e-9)


def test_next_hours_weighs_members_on_the_hours_before_each_origin():
    rng = np.random.default_rng(5)
    members, origins, leads, first = 4, 60, 3, 100
    x = np.abs(rng.standard_normal(first + origins - 1)) + 1.0
    x[-6:] += 40.0
    known = rng.random(len(x)) > 0.1
    paths = np.abs(rng.standard_normal((members, origins, leads))) + 1.0
    paths[3, :40] = np.nan
    prior = np.array([1.0, 2.0, 1.0, 0.5])
    out, followed = np.empty((origins, leads)), np.zeros(1)
    kernels.next_hours(x, known, first, paths, prior, leads, 0, JUDGE, out, followed)
    model, share = judge(x, known, first, paths, prior)
    close(out, model)
    assert math.isclose(followed[0], share, rel_tol=1e-9) and share > 0.0


def judge(x, known, first, paths, prior):
    members, origins, leads = paths.shape
    out = np.empty((origins, leads))
    surprise, usual_sum, usual_mass, many, mass = 0.0, 0.0, 0.0, 0.0, 0.0
    slow_fade, fast_fade = (0.5 ** (1.0 / h) for h in (JUDGE.slow_half_life, JUDGE.fast_half_life))
    for o in range(origins):
        usual_sum, usual_mass = usual_sum * slow_fade, usual_mass * slow_fade
        many, mass = many * fast_fade, mass * fast_fade
        hour = first + o - 1
        if o and known[hour]:
            error = abs(x[hour] - out[o - 1, 0])
            usual = max(usual_sum / usual_mass, 1e-9) if usual_mass else error
            if usual_mass:
                many, mass = many + error / usual, mass + 1.0
            usual_sum, usual_mass = usual_sum + min(error, JUDGE.surprise_to * usual), usual_mass + 1.0
        if usual_mass >= 24.0:
            width = JUDGE.surprise_to - JUDGE.surprise_from
            surprise = float(np.clip((many / mass - JUDGE.surprise_from) / width, 0.0, 1.0))
        means, masses = np.zeros((2, members, leads)), np.zeros((2, members, leads))
        for i, fade in enumerate((slow_fade, fast_fade)):
            for s in range(o):
                for k in range(leads):
                    at = first + s + k
                    if at < first + o and known[at]:
                        for m in range(members):
                            if np.isfinite(paths[m, s, k]):
                                old = fade ** (first + o - 1 - at)
                                means[i, m, k] += old * abs(x[at] - paths[m, s, k])
                                masses[i, m, k] += old
        good = (masses[0] > 0) & (masses[0] >= 0.5 * masses[0].max())
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(np.maximum(means / masses, 1e-9))
        fast = JUDGE.fast_share + (1.0 - JUDGE.fast_share) * surprise
        pooled = JUDGE.all_leads_share + (1.0 - JUDGE.all_leads_share) * surprise
        loss = np.where(good, (1.0 - fast) * logs[0] + fast * logs[1], np.nan)
        for k in range(leads):
            votes = []
            for m in range(members):
                whole = np.nanmean(loss[m]) if good[m].any() else np.nan
                mine = loss[m, k] + pooled * (whole - loss[m, k])
                votes.append(mine)
            least = np.nanmin(votes) if np.isfinite(votes).any() else None
            pairs = []
            for m in range(members):
                if np.isfinite(paths[m, o, k]) and (least is None or np.isfinite(votes[m])):
                    apart = 0.0 if least is None else votes[m] - least
                    pairs.append((paths[m, o, k], prior[m] * math.exp(-JUDGE.sharpness * apart)))
            pairs.sort()
            weight = np.array([w for _, w in pairs])
            middle = np.cumsum(weight) - weight / 2
            out[o, k] = np.interp(weight.sum() / 2, middle, [v for v, _ in pairs])
    return out, surprise


def test_sizes_that_do_not_fit_are_refused():
    x, out = np.ones(50), np.zeros((1, 5))
    for ends in ([51], [0], [-3]):
        with pytest.raises(ValueError, match="do not fit"):
            kernels.seasonal_repeat(x, np.array(ends), 24, out)
    with pytest.raises(ValueError, match="do not fit"):
        kernels.seasonal_repeat(x, np.array([30, 20]), 24, np.zeros((2, 5)))
    with pytest.raises(ValueError, match="do not fit"):
        kernels.holt_winters(x, np.array([50]), np.zeros(3), True, out)
