"""Every registered estimator works where a scikit-learn regressor does."""

import numpy as np
import pandas as pd
import pytest
import sklearn.exceptions
from sklearn.base import clone, is_regressor
from sklearn.model_selection import GridSearchCV, TimeSeriesSplit, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.validation import check_is_fitted

from tidegrid.errors import InputError, NotFittedError
from tidegrid.estimators import Estimator
from tidegrid.estimators.registry import discover
from tidegrid.estimators.synthetic import example

CLASSES = discover().classes


@pytest.fixture(params=sorted(CLASSES))
def made(request: pytest.FixtureRequest) -> tuple[Estimator, pd.DataFrame, pd.Series]:
    """An unfitted estimator and a made-up history in order of time."""
    estimator = CLASSES[request.param]()
    X, y = example(estimator, 60)
    if "ds" in X.columns:
        X = X.sort_values(["ds", "unique_id"], kind="stable")
    return estimator, X, y.loc[X.index]


def test_it_is_a_regressor_with_names_a_score_and_clones(
    made: tuple[Estimator, pd.DataFrame, pd.Series],
) -> None:
    estimator, X, y = made
    assert is_regressor(estimator)
    assert not hasattr(estimator, "feature_names_in_") and not hasattr(estimator, "n_features_in_")
    estimator.fit(X, y)
    check_is_fitted(estimator)
    assert set(estimator.feature_names_in_) >= {f.name for f in estimator.features if f.required}
    assert estimator.n_features_in_ == len(estimator.features)
    assert not hasattr(clone(estimator), "feature_names_in_")


def test_cross_val_score_pipeline_and_grid_search_run(
    made: tuple[Estimator, pd.DataFrame, pd.Series],
) -> None:
    estimator, X, y = made
    folds = TimeSeriesSplit(2)
    assert np.isfinite(cross_val_score(estimator, X, y, cv=folds, error_score="raise")).all()
    pipe = Pipeline([("same", FunctionTransformer()), ("estimator", estimator)])
    searched = GridSearchCV(
        pipe, {"estimator": [clone(estimator), clone(estimator)]}, cv=folds, error_score="raise"
    )
    searched.fit(X, y)
    assert len(searched.predict(X.iloc[-3:])) == 3


def test_not_fitted_is_scikit_learns_error_too() -> None:
    class Never(CLASSES["realtime"]):  # type: ignore[misc]
        pass

    with pytest.raises(sklearn.exceptions.NotFittedError) as raised:
        Never()._require_fitted("nothing_")
    assert isinstance(raised.value, NotFittedError)


def test_an_array_is_refused_in_one_line(made: tuple[Estimator, pd.DataFrame, pd.Series]) -> None:
    estimator, X, y = made
    with pytest.raises(InputError, match="columns have no names") as raised:
        estimator.fit(X.to_numpy(dtype=object), y)
    assert "\n" not in str(raised.value)


def test_a_shuffled_target_is_refused(made: tuple[Estimator, pd.DataFrame, pd.Series]) -> None:
    estimator, X, y = made
    with pytest.raises(InputError, match="another index than X"):
        estimator.fit(X, y.iloc[::-1])
