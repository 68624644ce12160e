"""Promises about the estimator itself: its class, its fit, what it answers, and what it saves."""

import inspect
import json
import warnings

import numpy as np
import pandas as pd
from sklearn.base import clone

from tidegrid.errors import InputError, NotFittedError
from tidegrid.estimators.base import BASES, LEVELS, Feature
from tidegrid.estimators.contract import ODD_LEVELS, SAME, Broken, Checks, Subject, need, shown, sound
from tidegrid.models import Bundle
from tidegrid.models.codec import decode, encode

CHECKS = Checks()


@CHECKS.promise("the class says its name, kind, target and features")
def _declares(subject: Subject) -> None:
    kind = type(subject.estimator)
    for attribute in ("name", "kind", "target", "features"):
        need(hasattr(kind, attribute), f"the class attribute {attribute} is missing")
    need(isinstance(kind.name, str) and bool(kind.name), "name is not a text")
    kinds = ("training", "batch_inference", "quantization", "realtime", "any")
    need(kind.kind in kinds, f"kind is {kind.kind!r}, not one of {', '.join(kinds)}")
    need(kind.target in ("duration_h", "demand"), f"target is {kind.target!r}, not 'duration_h' or 'demand'")
    need(all(isinstance(f, Feature) for f in kind.features), "features holds something that is not a Feature")
    names = [feature.name for feature in kind.features]
    need(len(names) == len(set(names)), "a feature is declared twice")
    for feature in kind.features:
        need(not feature.required or feature.default is None, f"{feature.name} is required and has a default")
        if feature.categories and feature.default is not None:
            need(
                feature.default in feature.categories,
                f"the default of {feature.name} is not one of its categories",
            )


@CHECKS.promise("__init__ only stores its arguments, and they are plain JSON values")
def _init_stores(subject: Subject) -> None:
    kind = type(subject.estimator)
    given = inspect.signature(kind.__init__).parameters
    bare = [p for p in list(given.values())[1:] if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if kind.__init__ is not object.__init__:
        need(all(p.kind != p.VAR_POSITIONAL for p in given.values()), "__init__ takes *args")
        need(all(p.default is not p.empty for p in bare), "an argument of __init__ has no default")
        made = kind()
        for p in bare:
            need(hasattr(made, p.name), f"__init__ does not store {p.name}")
            need(getattr(made, p.name) is p.default, f"__init__ changes {p.name}")
        extra = sorted(set(vars(made)) - {p.name for p in bare})
        need(not extra, f"__init__ sets {', '.join(extra)}, which are not its arguments")
    json.dumps(subject.estimator.get_params(deep=False), allow_nan=False)


@CHECKS.promise("clone gives an unfitted copy with the same parameters")
def _clones(subject: Subject) -> None:
    copy = clone(subject.fitted)
    need(copy.get_params() == subject.estimator.get_params(), "clone changed the parameters")
    learnt = [name for name in vars(copy) if name.endswith("_") and not name.startswith("_")]
    need(not learnt, f"a clone of a fitted estimator carries {shown(learnt)}")


@CHECKS.promise("unfitted, it predicts from its prior where it says so, and raises NotFittedError otherwise")
def _unfitted(subject: Subject) -> None:
    try:
        out = subject.fresh().predict_quantiles(subject.future.copy(), LEVELS)
    except NotFittedError:
        need(
            not subject.estimator.predicts_unfitted, "predicts_unfitted is True, but it raised NotFittedError"
        )
        return
    need(subject.estimator.predicts_unfitted, "it predicted although predicts_unfitted is False")
    sound(out, subject.future.index, LEVELS, "unfitted")
    basis = subject.fresh().basis(subject.future.copy())
    need(not basis.str.startswith("site history").any(), "unfitted, the basis says 'site history'")


@CHECKS.promise("fit returns self and leaves the parameters alone")
def _fit_returns_self(subject: Subject) -> None:
    estimator, (X, y) = subject.fresh(), subject.history
    before = estimator.get_params()
    need(estimator.fit(X.copy(), y.copy()) is estimator, "fit did not return self")
    need(estimator.get_params() == before, "fit changed a parameter")


@CHECKS.promise("quantiles are finite, non-negative and ordered, one column a level, on the index of X")
def _quantiles(subject: Subject) -> None:
    sound(subject.predicted, subject.future.index, LEVELS, "the default levels")
    for levels in (ODD_LEVELS, (0.5,), (0.9,)):
        out = subject.fitted.predict_quantiles(subject.future.copy(), levels)
        sound(out, subject.future.index, levels, f"levels {levels}")
    median = subject.fitted.predict(subject.future.copy())
    need(median.index.equals(subject.future.index), "predict is not on the index of X")
    alone = subject.fitted.predict_quantiles(subject.future.copy(), (0.5,))[0.5].to_numpy()
    need(np.allclose(median.to_numpy(), alone, rtol=SAME), "predict is not the median")
    need(
        np.allclose(alone, subject.predicted[0.5].to_numpy(), rtol=1e-6),
        "the median depends on the other levels",
    )
    mean = subject.fitted.predict_mean(subject.future.copy()).to_numpy()
    need(bool(np.isfinite(mean).all() and (mean >= 0).all()), "predict_mean is not finite and non-negative")


@CHECKS.promise("a level outside (0, 1) is refused")
def _bad_levels(subject: Subject) -> None:
    for levels in ((0.0,), (1.0,), (-0.1, 0.5), (float("nan"),), ()):
        try:
            subject.fitted.predict_quantiles(subject.future.copy(), levels)
        except InputError:
            continue
        raise Broken(f"levels {levels} were accepted")


@CHECKS.promise("the basis of each row is one of the known rungs")
def _basis(subject: Subject) -> None:
    out = subject.fitted.basis(subject.future.copy())
    need(isinstance(out, pd.Series), f"basis returned a {type(out).__name__}")
    need(out.index.equals(subject.future.index), "basis is not on the index of X")
    heads = out.astype(str).str.split(":").str[0].str.strip()
    bad = sorted(set(heads) - set(BASES))
    need(not bad, f"basis says {shown(bad)}, not one of {', '.join(BASES)}")


@CHECKS.promise("feasible says yes or no with a reason for each row")
def _feasible(subject: Subject) -> None:
    out = subject.fitted.feasible(subject.future.copy())
    need(isinstance(out, pd.DataFrame), f"feasible returned a {type(out).__name__}")
    need(out.index.equals(subject.future.index), "feasible is not on the index of X")
    need({"feasible", "reason"} <= set(out.columns), "feasible lacks the columns feasible and reason")
    yes = out["feasible"].to_numpy()
    need(all(isinstance(value, bool | np.bool_) for value in yes), "the column feasible is not bool")
    silent = (~yes.astype(bool)) & (out["reason"].astype(str).str.strip() == "").to_numpy()
    need(not silent.any(), "a row is not feasible and has no reason")


@CHECKS.promise("the same history gives the same bytes, whatever was fitted before")
def _deterministic(subject: Subject) -> None:
    X, y = subject.history
    other = subject.fresh().fit(X.iloc[: len(X) // 2].copy(), y.iloc[: len(X) // 2].copy())
    other.fit(X.copy(), y.copy())
    out = other.predict_quantiles(subject.future.copy(), LEVELS)
    need(
        out.to_numpy().tobytes() == subject.predicted.to_numpy().tobytes(),
        "a second fit predicts other numbers",
    )
    need(encode(other.to_bundle()) == encode(subject.fitted.to_bundle()), "a second fit gives another bundle")
    again = subject.fitted.predict_quantiles(subject.future.copy(), LEVELS)
    need(
        again.to_numpy().tobytes() == subject.predicted.to_numpy().tobytes(),
        "a second predict gives other numbers",
    )


@CHECKS.promise("save and load predict the same bytes")
def _saved(subject: Subject) -> None:
    fitted = [("fitted", subject.fitted)]
    fitted += [("unfitted", subject.fresh())] if subject.estimator.predicts_unfitted else []
    for what, estimator in fitted:
        bundle = estimator.to_bundle()
        need(isinstance(bundle, Bundle), f"{what}: to_bundle returned a {type(bundle).__name__}")
        need(
            bundle.estimator == type(estimator).name,
            f"{what}: the bundle's estimator is {bundle.estimator!r}",
        )
        files = encode(bundle)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loaded = type(estimator).from_bundle(decode(files))
        before = json.loads(json.dumps(estimator.get_params(deep=False)))
        after = json.loads(json.dumps(loaded.get_params(deep=False)))
        need(before == after, f"{what}: loading changed the parameters")
        for levels in (LEVELS, ODD_LEVELS):
            one = estimator.predict_quantiles(subject.future.copy(), levels)
            two = loaded.predict_quantiles(subject.future.copy(), levels)
            need(
                one.to_numpy().tobytes() == two.to_numpy().tobytes(),
                f"{what}: the loaded one predicts other numbers",
            )
        need(
            loaded.basis(subject.future.copy()).equals(estimator.basis(subject.future.copy())),
            f"{what}: the loaded one gives another basis",
        )
        need(encode(loaded.to_bundle()) == files, f"{what}: saving what was loaded gives other bytes")
