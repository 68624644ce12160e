"""What answers for demand: the estimator, else last week's hours, else what the apps hold; each says so."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from tidegrid.data import App
from tidegrid.estimators import Estimator
from tidegrid.estimators.base import as_levels, quantile_frame
from tidegrid.estimators.realtime.clean import clean
from tidegrid.pipeline.demand import capacity_of, kept_gpus
from tidegrid.pipeline.memory import Event
from tidegrid.pipeline.naive import NaiveDemand

FALLBACK, HELD = "the same hour a week before", "what it holds"
"""The rungs below the estimator."""


class SureDemand:
    """A demand estimator that always answers.

    Where the estimator raises, or its answer is no quantile, the value of the same hour a week (or a day) before
    answers, with that forecast's own past errors as its band. A series of which nothing is known yet is not guessed
    from others: it is planned at what its apps hold, or at their floor where that is more.

    Parameters
    ----------
    inner
        The estimator; None where there is none.
    why
        Why there is none.
    traffic
        Returns the traffic known so far: ``series_id``, ``timestamp``, ``value``. Asked only where the
        estimator fails.
    apps
        Who hold what.

    Attributes
    ----------
    problem
        Why the estimator does not answer; empty while it does.
    unknown
        Series of which nothing is known.
    unscaled
        Apps that declare no throughput.
    """

    def __init__(
        self,
        inner: Estimator | None,
        traffic: Callable[[], pd.DataFrame],
        apps: Sequence[App] = (),
        why: str = "there is no fitted realtime estimator",
    ) -> None:
        self.inner, self.traffic = inner, traffic
        self.problem = "" if inner is not None else why
        self.unknown: set[str] = set()
        self.unscaled = [app.id for app in apps if capacity_of(app) is None]
        self.held: dict[str, float] = {}
        for app in apps:
            capacity = capacity_of(app)
            each = 0.0 if capacity is None else capacity.units_per_gpu_hour * capacity.target_load
            units = kept_gpus(app) * each / app.share
            self.held[app.series] = max(self.held.get(app.series, 0.0), units)

    @property
    def model(self) -> str:
        """The name under which errors of this forecast are recorded."""
        return "fallback" if self.problem or self.inner is None else self.inner.name

    def answer(self, X: pd.DataFrame, levels: Sequence[float]) -> tuple[pd.DataFrame, pd.Series]:
        """Return quantiles of demand, units an hour, and what answers for each row, on the index of ``X``."""
        wanted = as_levels(levels)
        if self.inner is not None and not self.problem:
            try:
                out, basis = self.inner.predict_quantiles(X, wanted), self.inner.basis(X)
                values = out.to_numpy(dtype=float)
                fine = values.shape == (len(X), len(wanted)) and bool(
                    np.isfinite(values).all() and (values >= 0).all()
                )
                if not fine:
                    raise ValueError("its answer is no demand")
                return self._without_guesses(X, out, basis)
            except Exception as error:  # whatever is wrong with it, the plan goes on with the next rung, told
                said = str(error)
                self.problem = said if type(error) is ValueError else f"{type(error).__name__}: {said}"
        return self._naive(X, wanted)

    def events(self) -> list[Event]:
        """Return what is to be told of the rungs that answered."""
        out = []
        if self.problem:
            text = f"realtime failed ({self.problem}); {FALLBACK} answers"
            out.append(Event("fallback", "realtime", text))
        for name in self.unscaled:
            text = f"{name} declares no units_per_gpu_hour: it is planned at {HELD}, or at its floor"
            out.append(Event("unknown demand", name, text))
        for name in sorted(self.unknown):
            text = f"nothing is known of the traffic of {name} yet: its apps are planned at {HELD}, or at their floor"
            out.append(Event("unknown demand", name, text))
        return out

    def _without_guesses(
        self, X: pd.DataFrame, out: pd.DataFrame, basis: pd.Series
    ) -> tuple[pd.DataFrame, pd.Series]:
        guessed = ~basis.astype(str).str.startswith("site history") & X["unique_id"].isin(list(self.held))
        if not guessed.any():
            return out, basis
        out, basis = out.copy(), basis.astype(object).copy()
        units = X.loc[guessed, "unique_id"].astype(str).map(self.held).to_numpy(dtype=float)
        out.loc[guessed] = units[:, None]
        basis[guessed] = f"prior: {HELD}"
        self.unknown |= set(X.loc[guessed, "unique_id"].astype(str))
        return out, basis

    def _naive(self, X: pd.DataFrame, levels: tuple[float, ...]) -> tuple[pd.DataFrame, pd.Series]:
        traffic = cleaned(self.traffic())
        past = pd.DataFrame({"unique_id": traffic["series_id"], "ds": traffic["timestamp"]})
        naive = NaiveDemand().fit(past, traffic["value"]).quantiles(X, levels)
        last = traffic.dropna(subset=["value"]).groupby("series_id")["value"].last()
        latest: Mapping[str, float] = {str(name): float(value) for name, value in last.items()}
        series = X["unique_id"].astype(str)
        self.unknown |= set(series[~series.isin(list(latest))])
        known = series.map({**self.held, **latest}).fillna(0.0).to_numpy(dtype=float)
        out = np.where(np.isfinite(naive), naive, known[:, None])
        text = f"site history: {FALLBACK}, since realtime failed ({self.problem})"
        basis = pd.Series(text, index=X.index, dtype=object)
        basis[series.isin(list(self.unknown)).to_numpy()] = f"prior: {HELD}"
        values = np.maximum.accumulate(np.maximum(out, 0.0), axis=1)
        return quantile_frame(values, levels, X.index), basis


def cleaned(traffic: pd.DataFrame) -> pd.DataFrame:
    """Return hourly traffic with gaps, outages and spikes filled: no fallback should repeat them."""
    parts = []
    for _, part in traffic.groupby("series_id", sort=True):
        found = clean(part["value"].to_numpy(dtype=float))
        kept = part.iloc[found.offset : found.offset + len(found.values)]
        parts.append(kept.assign(value=found.values))
    return pd.concat(parts, ignore_index=True) if parts else traffic
