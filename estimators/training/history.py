"""What a site's history teaches: offsets, and the residuals that bands rest on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tidegrid.estimators.training import intervals
from tidegrid.estimators.training.calibration import take
from tidegrid.estimators.training.features import Runs
from tidegrid.estimators.training.offsets import Keys, SiteModel, SiteView, fit_site, keep_latest, shrunken

RECENT = 1000
"""Scaled residuals kept for recalibration, the latest ones."""

BEYOND = 50_000
"""Rows beyond the process's memory whose keys keep a mean, the latest ones."""

KNOWN = 0.85
"""Share of the prior's variance above which a row counts as one of a stack never seen."""

CHUNK = 8192
"""Rows handled at a time, so that memory does not grow with the batch."""


@dataclass
class Rows:
    """Prepared rows.

    Parameters
    ----------
    runs
        The runs as arrays.
    x : ndarray of shape (rows, features)
        Scaled features.
    keys
        Whose they are.
    """

    runs: Runs
    x: np.ndarray
    keys: Keys

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: np.ndarray) -> "Rows":
        return Rows(take(self.runs, rows), self.x[rows], self.keys[rows])


@dataclass
class History:
    """What was learnt.

    Parameters
    ----------
    site
        The site's offsets.
    recent : ndarray of shape (recent,)
        Scaled residuals of predictions that had not seen their outcome, the latest last.
    recent_stack : ndarray of shape (recent,)
        Whose they are.
    finished, censored
        Rows seen.
    """

    site: SiteModel
    recent: np.ndarray = field(default_factory=lambda: np.zeros(0))
    recent_stack: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype="<U1"))
    finished: int = 0
    censored: int = 0

    def view(self, rows: Rows) -> "View":
        """Return what history says of rows."""
        return View(self, rows, self.site.view(rows.x, rows.keys))

    def pool(self) -> intervals.Pool:
        """Return the pool of residuals for the bands."""
        return intervals.Pool(self.recent, self.recent_stack)

    def to_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return JSON state and arrays."""
        site, arrays = self.site.to_state()
        arrays["recent"], arrays["recent_stack"] = self.recent, self.recent_stack.astype(str)
        return {"site": site, "finished": self.finished, "censored": self.censored}, arrays

    @classmethod
    def from_state(cls, state: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> "History":
        """Rebuild it from :meth:`to_state`."""
        return cls(
            SiteModel.from_state(state["site"], arrays), arrays["recent"], arrays["recent_stack"].astype(str),
            int(state["finished"]), int(state["censored"]),
        )  # fmt: skip


@dataclass
class View:
    """What a history says of some rows.

    Parameters
    ----------
    history
        The history.
    rows
        The rows.
    site
        What the site's process says of them.
    """

    history: History
    rows: Rows
    site: SiteView

    def correction(self) -> np.ndarray:
        """Return the log factor on the prior, shape (rows,)."""
        return self.site.mean()

    def scale(self, scale: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
        """Return how little is known of each row (0 to 1), and the scale of its log residual."""
        return blended(self.rows, self.site.variance(), self.history.site.noise, scale)


def blended(
    rows: Rows, variance: np.ndarray, noise: float, scale: Mapping[str, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Return how little is known of each row, and the scale of its log residual between the prior's and its own."""
    # a new stack still shares the site's offset: that alone is not knowing it
    unknown = np.clip(variance / (KNOWN * SiteModel.prior_variance(rows.keys)), 0.0, 1.0)
    own = np.sqrt(variance + noise**2)
    prior = intervals.prior_scale(rows.runs, scale)
    return unknown, np.sqrt(unknown**2 * prior**2 + (1.0 - unknown**2) * own**2)


def learn(
    rows: Rows, z: np.ndarray, seen: np.ndarray, order: np.ndarray, scale: Mapping[str, float]
) -> History:
    """Learn from a whole history.

    Parameters
    ----------
    rows
        The rows.
    z : ndarray of shape (rows,)
        Log(actual / prior); log(bound / prior) where not seen.
    seen : ndarray of bool
        Whether the row finished.
    order
        Rank in time.
    scale
        The prior's scale coefficients.
    """
    telling = np.flatnonzero(_telling(z, seen))
    kept = telling[keep_latest(rows.keys[telling], order[telling])]
    site = fit_site(rows.x[kept], rows.keys[kept], z[kept], seen[kept], np.ones(len(kept)), {})
    out = History(site, finished=int(seen.sum()), censored=int((~seen).sum()))
    _fill_pool(out, rows, z, seen, telling, kept, order, scale)
    return out


def learn_more(
    history: History,
    rows: Rows,
    z: np.ndarray,
    seen: np.ndarray,
    order: np.ndarray,
    scale: Mapping[str, float],
) -> History:
    """Learn later rows: offsets and bands move. Parameters as in :func:`learn`."""
    site = history.site
    in_time = np.argsort(order, kind="stable")
    in_time = in_time[_telling(z, seen, site.y[site.seen])[in_time]]
    new, fresh, known = rows[in_time], z[in_time], seen[in_time]
    view = history.view(new)
    scaled = (fresh - view.correction()) / view.scale(scale)[1]
    x, keys = np.concatenate([site.x, new.x]), site.keys.joined(new.keys)
    y, was = np.concatenate([site.y, fresh]), np.concatenate([site.seen, known])
    wild = np.where(known, np.maximum(1.0, np.abs(scaled) / 3.0), 1.0)
    extra = np.concatenate([site.extra, wild])
    kept = keep_latest(keys, np.arange(len(keys)))
    # a young history chooses its noise anew with every outcome; an old one only after many
    if len(site.y) < 64 or len(fresh) >= 0.2 * len(site.y):
        moved = fit_site(x[kept], keys[kept], y[kept], was[kept], extra[kept], site.means)
    else:
        moved = SiteModel(x[kept], keys[kept], y[kept], was[kept], extra[kept], site.noise, site.means)
    scaled = _beyond(scaled, known, history.finished + history.censored)
    return History(
        moved, np.concatenate([history.recent, scaled])[-RECENT:],
        np.concatenate([history.recent_stack, new.keys.stack])[-RECENT:],
        history.finished + int(seen.sum()), history.censored + int((~seen).sum()),
    )  # fmt: skip


def _telling(z: np.ndarray, seen: np.ndarray, finished: np.ndarray | None = None) -> np.ndarray:
    """Return which rows say something: a bound below nearly all that finished, or far below the prior, does not."""
    known = z[seen] if finished is None else np.concatenate([finished, z[seen]])
    floor = float(np.quantile(known, 0.05)) if len(known) else -1.0
    return np.asarray(seen | (z > floor))


def _beyond(scaled: np.ndarray, seen: np.ndarray, before: int = 0) -> np.ndarray:
    """Return scaled residuals in which lower bounds are replaced by where such runs end.

    Each by one quantile of a normal beyond its bound, the quantiles spread evenly (a Weyl sequence, which goes on after
    the ``before`` rows that came earlier): left out, the longest runs would be missing from every quantile.
    """
    from scipy.stats import norm

    spread = (np.arange(before + 1, before + len(scaled) + 1) * 0.6180339887) % 1.0
    return np.where(seen, scaled, np.minimum(norm.isf(norm.sf(np.minimum(scaled, 6.0)) * spread), 8.0))


def _fill_pool(
    out: History, rows: Rows, z: np.ndarray, seen: np.ndarray, telling: np.ndarray, kept: np.ndarray,
    order: np.ndarray, scale: Mapping[str, float],
) -> None:  # fmt: skip
    """Set the pool of scaled residuals, and the means of keys beyond the memory."""
    from scipy.stats import norm

    site = out.site
    without, variance = site.leave_one_out()
    pool, whose = (z[kept] - without) / blended(rows[kept], variance, site.noise, scale)[1], kept
    beyond = np.setdiff1d(telling, kept)
    if len(beyond):
        latest = beyond[np.argsort(-order[beyond], kind="stable")[:BEYOND]]
        left = z[latest].copy()
        for start in range(0, len(latest), CHUNK):
            part = latest[start : start + CHUNK]
            left[start : start + CHUNK] -= site.view(rows.x[part], rows.keys[part]).mean()
        # what is expected of a run that got as far as its bound (the inverse Mills ratio)
        b = left / site.noise
        left = np.where(seen[latest], left, site.noise * np.exp(norm.logpdf(b) - norm.logsf(b)))
        left, outside = np.clip(left, -2.0, 2.0), np.clip(b * site.noise, -2.0, 2.0)
        for level in ("stack", "user", "name"):
            uniques, codes = np.unique(getattr(rows.keys, level)[latest], return_inverse=True)
            counts, sums = np.bincount(codes), np.bincount(codes, weights=left)
            for name, n, total in zip(uniques, counts, sums, strict=True):
                # each level explains what the one above left; one or two rows are no habit
                if name != "" and n >= 3:
                    site.means[f"{level}|{name}"] = (float(n), float(total))
            means = np.array([shrunken(site.means.get(f"{level}|{name}")) for name in uniques])
            # a row's own residual is no part of the mean that it is judged against
            outside -= means[codes] - np.where(means[codes] != 0, left / (counts[codes] + 4.0), 0.0)
            left = left - means[codes]
        recent = latest[:RECENT]
        again = outside[:RECENT] / out.view(rows[recent]).scale(scale)[1]
        pool, whose = np.concatenate([pool, again]), np.concatenate([kept, recent])
    by_time = np.argsort(order[whose], kind="stable")[-RECENT:]
    pool = _beyond(pool, seen[whose])
    out.recent, out.recent_stack = pool[by_time], rows.keys.stack[whose][by_time]
