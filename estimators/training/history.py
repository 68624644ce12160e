"""What a site's history teaches: learned residual, offsets, and the residuals that bands rest on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tidegrid.estimators.training import intervals, residual
from tidegrid.estimators.training.calibration import take
from tidegrid.estimators.training.features import Runs
from tidegrid.estimators.training.offsets import Keys, SiteModel, SiteView, fit_site, keep_latest, shrunken
from tidegrid.estimators.training.residual import Residual

RECENT = 1000
"""Scaled residuals kept for recalibration, the latest ones."""

BOUNDS = 96
"""Lower bounds looked at, the latest ones."""

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
    learned
        The learned residual; None where there is too little history.
    recent : ndarray of shape (recent,)
        Scaled residuals of predictions that had not seen their outcome, the latest last.
    recent_stack : ndarray of shape (recent,)
        Whose they are.
    finished, censored
        Rows seen.
    """

    site: SiteModel
    learned: Residual | None = None
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

    def to_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, str]]:
        """Return JSON state, arrays and texts."""
        site, arrays = self.site.to_state()
        state = {"site": site, "finished": self.finished, "censored": self.censored}
        arrays["recent"], arrays["recent_stack"] = self.recent, self.recent_stack.astype(str)
        texts = {}
        if self.learned is not None:
            texts["residual"] = self.learned.text
            arrays["landmarks"], arrays["stacks"] = self.learned.landmarks, self.learned.stacks.astype(str)
        return state, arrays, texts

    @classmethod
    def from_state(
        cls, state: Mapping[str, Any], arrays: Mapping[str, np.ndarray], texts: Mapping[str, str]
    ) -> "History":
        """Rebuild it from :meth:`to_state`."""
        learned = None
        if "residual" in texts:
            learned = Residual(texts["residual"], arrays["landmarks"], arrays["stacks"].astype(str))
        return cls(
            SiteModel.from_state(state["site"], arrays), learned, arrays["recent"],
            arrays["recent_stack"].astype(str), int(state["finished"]), int(state["censored"]),
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

    def first(self, rows: Rows) -> "View":
        """Return the view of the first rows, given as ``rows``."""
        return View(self.history, rows, self.site.first(len(rows)))

    def correction(self) -> np.ndarray:
        """Return the log factor on the prior, shape (rows,)."""
        return self.site.mean() + self.learned()

    def learned(self) -> np.ndarray:
        """Return the learned residual's part of it."""
        if self.history.learned is None:
            return np.zeros(len(self.rows))
        return self.history.learned.predict(self.rows.x, self.rows.keys.stack)

    def scale(self, scale: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
        """Return how little is known of each row (0 to 1), and the scale of its log residual."""
        return blended(self.rows, self.site.variance(), self.site.loudness(), self.history.site.noise, scale)


def blended(
    rows: Rows, variance: np.ndarray, loud: np.ndarray, noise: float, scale: Mapping[str, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Return how little is known of each row, and the scale of its log residual between the prior's and its own."""
    # a new stack still shares the site's offset: that alone is not knowing it
    unknown = np.clip(variance / (KNOWN * SiteModel.prior_variance(rows.keys)), 0.0, 1.0)
    own = np.sqrt(variance + noise**2) * loud
    prior = intervals.prior_scale(rows.runs, scale)
    return unknown, np.sqrt(unknown**2 * prior**2 + (1.0 - unknown**2) * own**2)


def learn(
    rows: Rows,
    z: np.ndarray,
    seen: np.ndarray,
    order: np.ndarray,
    scale: Mapping[str, float],
    *,
    with_residual: bool,
    seed: int,
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
    with_residual
        Whether to fit the learned residual where there is history enough.
    seed
        Seed of its bagging.
    """
    done = np.flatnonzero(seen)
    rest, learned = z.copy(), None
    if with_residual and len(done) >= residual.ENOUGH:
        learned, outside = residual.fit_residual(
            rows.x[done], z[done], rows.keys.stack[done], _folds(len(done)), seed
        )
        rest[done] = z[done] - outside
    kept = done[keep_latest(rows.keys[done], order[done])]
    out = History(fit_site(rows.x[kept], rows.keys[kept], rest[kept], np.ones(len(kept))), learned)
    out.finished, out.censored = len(done), int((~seen).sum())
    _fill_pool(out, rows, rest, done, kept, order, scale)
    _take_bounds(out, rows, z, np.flatnonzero(~seen), order)
    return out


def learn_more(
    history: History,
    rows: Rows,
    z: np.ndarray,
    seen: np.ndarray,
    order: np.ndarray,
    scale: Mapping[str, float],
) -> History:
    """Learn later rows: offsets and bands move, the learned residual stays. Parameters as in :func:`learn`."""
    in_time = np.argsort(order, kind="stable")
    done = in_time[seen[in_time]]
    new, site = rows[done], history.site
    view = history.view(new)
    rest = z[done] - view.learned()
    scaled = (rest - view.site.mean()) / view.scale(scale)[1]
    x, keys = np.concatenate([site.x, new.x]), site.keys.joined(new.keys)
    values = np.concatenate([site.z, rest])
    extra = np.concatenate([site.extra, np.maximum(1.0, np.abs(scaled) / 3.0)])
    kept = keep_latest(keys, np.arange(len(keys)))
    # a young history chooses its noise anew with every outcome; an old one only after many
    if len(site.z) < 64 or len(done) >= 0.2 * len(site.z):
        fresh = fit_site(x[kept], keys[kept], values[kept], extra[kept])
        fresh.means = site.means
    else:
        fresh = SiteModel(x[kept], keys[kept], values[kept], extra[kept], site.noise, site.means)
    out = History(fresh, history.learned)
    out.recent = np.concatenate([history.recent, scaled])[-RECENT:]
    out.recent_stack = np.concatenate([history.recent_stack, new.keys.stack])[-RECENT:]
    out.finished, out.censored = history.finished + len(done), history.censored + int((~seen).sum())
    _take_bounds(out, rows, z, in_time[~seen[in_time]], order)
    return out


def _folds(rows: int) -> np.ndarray:
    # a fixed scramble: neighbours in a table are alike, and must not sit on both sides
    return (np.arange(rows) * 7919 % 104729) % (10 if rows < 5000 else 4)


def _fill_pool(
    out: History,
    rows: Rows,
    rest: np.ndarray,
    done: np.ndarray,
    kept: np.ndarray,
    order: np.ndarray,
    scale: Mapping[str, float],
) -> None:
    """Set the pool of scaled residuals, and the means of keys beyond the memory."""
    site = out.site
    loo, variance = site.leave_one_out()
    loud = site.view(site.x, site.keys).loudness(left_out=True)
    pool, whose = loo / blended(rows[kept], variance, loud, site.noise, scale)[1], kept
    beyond = np.setdiff1d(done, kept)
    if len(beyond):
        latest = beyond[np.argsort(-order[beyond], kind="stable")[:BEYOND]]
        left = rest[latest].copy()
        for start in range(0, len(latest), CHUNK):
            part = latest[start : start + CHUNK]
            left[start : start + CHUNK] -= site.view(rows.x[part], rows.keys[part]).mean()
        left = np.clip(left, -2.0, 2.0)
        outside = left.copy()
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
    out.recent, out.recent_stack = pool[by_time], rows.keys.stack[whose][by_time]


def _take_bounds(out: History, rows: Rows, z: np.ndarray, bounds: np.ndarray, order: np.ndarray) -> None:
    """Add the lower bounds that say something, as what is expected given that the run got there.

    A bound below the prediction says nothing. One above it counts as the mean of a normal beyond it (the inverse Mills
    ratio, as in Tobin 1958), with twice the prediction's spread as its noise.
    """
    from scipy.stats import norm

    if len(bounds) == 0:
        return
    latest = bounds[np.argsort(-order[bounds], kind="stable")[:BOUNDS]]
    site, cut = out.site, rows[latest]
    view = out.view(cut)
    mean, variance, learned = view.site.mean(), view.site.variance(), view.learned()
    spread = np.sqrt(variance + site.noise**2)
    beyond = (z[latest] - learned - mean) / spread
    telling = np.flatnonzero(beyond > 0)
    if len(telling) == 0:
        return
    b = np.minimum(beyond[telling], 6.0)
    value = mean[telling] + np.maximum(norm.pdf(b) / norm.sf(b), beyond[telling]) * spread[telling]
    extra = np.maximum(1.0, 2.0 * spread[telling] / site.noise)
    out.site = SiteModel(
        np.concatenate([site.x, cut.x[telling]]), site.keys.joined(cut.keys[telling]),
        np.concatenate([site.z, value]), np.concatenate([site.extra, extra]), site.noise, site.means,
    )  # fmt: skip
