"""Training: what takes over, what never does, and what answers in the meantime."""

import hashlib
import multiprocessing
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
import pytest
from joblib import Parallel, delayed

from tidegrid.data import History
from tidegrid.data.synth import synthesise
from tidegrid.errors import InputError
from tidegrid.estimators import LEVELS, Estimator, Feature
from tidegrid.estimators.base import as_levels, checked_features, quantile_frame
from tidegrid.estimators.registry import Failure, Registry, load
from tidegrid.models import Bundle, Lineage, ModelStore, VersionWarning, manifest
from tidegrid.pipeline.backtest import rows_of
from tidegrid.pipeline.champions import preferred
from tidegrid.pipeline.train import fit_all, load_estimators, train

NOW = pd.Timestamp("2026-03-01T00:00:00Z")


class Site(Estimator):
    """Quantiles of the site's past durations, times a factor that tests turn."""

    name: ClassVar[str] = "site"
    kind: ClassVar[str] = "any"
    features: ClassVar[tuple[Feature, ...]] = (Feature("gpus", "float", "GPUs", low=0, default=1),)
    factor: ClassVar[float] = 1.0

    def fit(
        self,
        X: pd.DataFrame,
        y: pd.Series,
        *,
        observed: pd.Series | None = None,
        known_at: pd.Series | None = None,
    ) -> Self:
        checked_features(X, self.features)
        if not len(y):
            raise InputError("has no rows", field="y")
        self.hours_ = np.sort(y.to_numpy(dtype=float)) * self.factor
        return self

    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        levels = as_levels(levels)
        self._require_fitted("hours_")
        return quantile_frame(np.tile(np.quantile(self.hours_, levels), (len(X), 1)), levels, X.index)

    def basis(self, X: pd.DataFrame) -> pd.Series:
        return pd.Series("site history", index=X.index)

    def to_bundle(self) -> Bundle:
        return Bundle(self.name, {}, {}, {"hours": self.hours_})

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        out = cls()
        out.hours_ = bundle.arrays["hours"]
        return out


class Prior(Site):
    """As above, with a poor prior."""

    name: ClassVar[str] = "prior"
    predicts_unfitted: ClassVar[bool] = True

    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        if not hasattr(self, "hours_"):
            return quantile_frame(np.full((len(X), len(levels)), 1000.0), as_levels(levels), X.index)
        return super().predict_quantiles(X, levels)


class Broken(Site):
    """A plugin whose fit has a fault."""

    name: ClassVar[str] = "broken"

    def fit(self, X: Any, y: Any, *, observed: Any = None, known_at: Any = None) -> Self:
        return {}[0]  # type: ignore[no-any-return]


class NotPlain(Site):
    """A plugin that learns what cannot be stored."""

    name: ClassVar[str] = "not_plain"

    def to_bundle(self) -> Bundle:
        return Bundle(self.name, {}, {"users": {"ann", "bob"}}, {"hours": self.hours_})


class Copied(Site):
    """A plugin whose bundle still has the name of the estimator that it was copied from."""

    name: ClassVar[str] = "copied"

    def to_bundle(self) -> Bundle:
        return Bundle("prior", {}, {}, {"hours": self.hours_})


class Short(Site):
    """A plugin that answers one row too few."""

    name: ClassVar[str] = "short"

    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        return super().predict_quantiles(X.iloc[1:], levels)


class Forgetful(Site):
    """A plugin whose update has a fault."""

    name: ClassVar[str] = "forgetful"

    def update(self, X: Any, y: Any, **more: Any) -> Self:
        raise KeyError("nothing")


def registry(*kinds: type[Estimator], failures: tuple[Failure, ...] = ()) -> Registry:
    return Registry({k.name: k for k in kinds}, {k.name: "test 1" for k in kinds}, failures)


def history(jobs: int = 400, seed: int = 0, median_h: float = 1.0, until: pd.Timestamp = NOW) -> History:
    """Jobs of many users, each of random length: the naive forecast per user has little to hold on to."""
    rng = np.random.default_rng(seed)
    submit = until - pd.to_timedelta(np.sort(rng.uniform(1, 30 * 24, jobs))[::-1], unit="h")
    hours = np.exp(rng.normal(np.log(median_h), 0.8, jobs))
    return History(
        pd.DataFrame(
            {
                "job_id": [f"j{seed}-{i}" for i in range(jobs)],
                "kind": "training",
                "status": "completed",
                "submit_time": submit,
                "start_time": submit,
                "end_time": submit + pd.to_timedelta(np.round(hours * 3600), unit="s"),
                "gpus": 1,
                "user": [f"u{i % 40}" for i in range(jobs)],
                "group": "g",
                "name": "",
            }
        )
    )


@pytest.fixture
def store(tmp_path: Any) -> ModelStore:
    return ModelStore(tmp_path / "models")


def test_the_first_version_takes_over_where_it_beats_the_prior(store: ModelStore) -> None:
    (done,) = train(history(), store, now=NOW, registry=registry(Prior))
    assert done.decision == "promoted" and "of the prior" in done.reason
    assert store.champion("prior") == done.version


def test_a_version_records_what_it_learnt_from(store: ModelStore) -> None:
    train(history(), store, now=NOW, registry=registry(Prior))
    body = store.show("prior").manifest
    assert body["window"][1] < NOW.isoformat() and body["rows"] > 200 and len(body["history_sha256"]) == 64
    assert body["metrics"]["test_rows"] >= 30 and body["metrics"]["loss"] < body["metrics"]["prior_loss"]
    assert body["created"] == NOW.isoformat() and body["distribution"] == "test 1"
    assert store.log("prior")[-1].reason.startswith("there is no champion")


def test_training_again_on_the_same_history_changes_nothing(store: ModelStore) -> None:
    train(history(), store, now=NOW, registry=registry(Prior))
    (again,) = train(history(), store, now=NOW, registry=registry(Prior))
    assert again.decision == "unchanged" and len(store.list()) == 1


@pytest.mark.parametrize("kind", [Prior, Site])
def test_work_is_not_repeated_that_the_store_holds(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch, kind: type[Estimator]
) -> None:
    """Nothing is fitted again, whether the first fit took over or was rejected; unless its code has changed."""
    (first,) = train(history(), store, now=NOW, registry=registry(kind))
    log = store.log(kind.name)

    def fit(*_: object, **__: object) -> None:
        raise AssertionError("it is fitted again")

    monkeypatch.setattr(Site, "fit", fit)
    (again,) = train(history(), store, now=NOW, registry=registry(kind))
    assert (again.version, again.rows) == (first.version, first.rows) and store.log(kind.name) == log
    assert again.decision == {"promoted": "unchanged", "kept": "kept"}[first.decision]
    for changed in ({"refit": True}, {"registry": Registry({kind.name: kind}, {kind.name: "test 2"}, ())}):
        (done,) = train(history(), store, now=NOW, **({"registry": registry(kind)} | changed))
        assert done.decision == "failed" and "fitted again" in done.reason
    (done,) = train(history(seed=1), store, now=NOW, registry=registry(kind))
    assert done.decision == "failed"


def test_a_damaged_champion_is_fitted_again(store: ModelStore) -> None:
    (first,) = train(history(), store, now=NOW, registry=registry(Prior))
    next(p for p in store.show("prior").folder.iterdir() if p.name != "manifest.json").write_bytes(b"x")
    (again,) = train(history(), store, now=NOW, registry=registry(Prior))
    assert again.version not in (None, first.version)


def later(days: int, seed: int = 1, median_h: float = 1.0) -> tuple[History, pd.Timestamp]:
    """The first month, and another ``days`` of jobs after it."""
    now = NOW + pd.Timedelta(days=days)
    first = history().jobs
    more = history(400, seed, median_h, until=now).jobs
    more = more[more["submit_time"] > NOW]
    return History(pd.concat([first, more], ignore_index=True)), now


def test_a_worse_challenger_is_rejected_with_its_reason(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = train(history(), store, now=NOW, registry=registry(Site))
    if first.decision != "promoted":
        store.promote("site", first.version or "", reason="test", at=NOW.isoformat())
    monkeypatch.setattr(Site, "factor", 9.0)
    grown, now = later(20)
    (done,) = train(grown, store, now=now, registry=registry(Site))
    assert done.decision == "kept" and store.champion("site") == first.version
    entry = store.log("site")[-1]
    assert entry.action == "reject" and entry.version == done.version
    assert entry.reason == done.reason and "covers only" in entry.reason


def test_a_better_challenger_takes_over(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Site, "factor", 9.0)
    (first,) = train(history(), store, now=NOW, registry=registry(Site))
    store.promote("site", first.version or "", reason="test", at=NOW.isoformat())
    monkeypatch.setattr(Site, "factor", 1.0)
    grown, now = later(20)
    (done,) = train(grown, store, now=now, registry=registry(Site))
    assert done.decision == "promoted" and store.ancestors("site") == (first.version,)


def test_the_test_is_later_than_what_either_has_seen(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The champion has learnt up to a day ago: the test begins there, and not where the challenger's would."""
    grown, now = later(20)
    (first,) = train(grown, store, now=now, registry=registry(Site))
    store.promote("site", first.version or "", reason="test", at=now.isoformat())
    champion_until = store.show("site").manifest["window"][1]
    monkeypatch.setattr(Site, "factor", 1.01)
    (done,) = train(grown, store, now=now, registry=registry(Site), refit=True)
    assert done.version != first.version
    assert store.show("site", done.version or "").manifest["window"][1] >= champion_until


def test_a_challenger_without_later_rows_never_takes_over(store: ModelStore) -> None:
    """Forty jobs leave no test: there is a version, and no champion."""
    (done,) = train(history(40), store, now=NOW, registry=registry(Prior))
    assert done.decision == "kept" and "cannot be evaluated" in done.reason
    assert done.version is not None and store.champion("prior") is None


def test_an_instant_before_the_champions_training_decides_nothing(store: ModelStore) -> None:
    grown, now = later(20)
    (first,) = train(grown, store, now=now, registry=registry(Prior))
    (done,) = train(grown, store, now=NOW, registry=registry(Prior))
    assert done.decision == "kept" and "cannot be evaluated" in done.reason
    assert store.champion("prior") == first.version


def test_nothing_later_than_now_is_looked_at(tmp_path: Any) -> None:
    """All that became known after now is changed, and the store's bytes stay the same."""
    grown, _ = later(20)
    other = grown.jobs
    after = other["known_at"] > NOW
    other.loc[after, "end_time"] = other.loc[after, "end_time"] + pd.Timedelta(hours=90)
    other = other.drop(columns=["known_at", "duration_s", "known_at_estimated"])
    stores = []
    for name, one in (("a", grown), ("b", History(other))):
        store = ModelStore(tmp_path / name)
        train(one, store, now=NOW, registry=registry(Prior, Site))
        stores.append(
            {str(p.relative_to(store.root)): p.read_bytes() for p in sorted(store.root.rglob("*.*"))}
        )
    assert stores[0] == stores[1] and len(stores[0]) > 4


def test_an_estimator_that_fails_stops_no_other(store: ModelStore) -> None:
    failure = Failure("absent", "x:Y", "pkg 1", "ModuleNotFoundError: x")
    done = train(history(), store, now=NOW, registry=registry(Broken, Prior, failures=(failure,)))
    assert {d.name: d.decision for d in done} == {"absent": "failed", "broken": "failed", "prior": "promoted"}
    assert all("\n" not in d.reason for d in done)


def test_an_estimator_that_cannot_be_stored_stops_no_other(store: ModelStore) -> None:
    done = train(history(), store, now=NOW, registry=registry(NotPlain, Copied, Short, Prior))
    told = {d.name: (d.decision, d.reason) for d in done}
    assert told["prior"][0] == "promoted"
    assert told["not_plain"][0] == "failed" and "state.users is a builtins.set" in told["not_plain"][1]
    assert told["copied"][0] == "failed" and "'prior'" in told["copied"][1]
    assert told["short"][0] == "kept" and "not one finite quantile for each row" in told["short"][1]
    # nothing came under another's name
    assert [v.id for v in store.list("prior")] == [store.champion("prior")]


def test_an_unknown_name_is_refused(store: ModelStore) -> None:
    with pytest.raises(InputError, match="use one of: prior"):
        train(history(), store, names=["nope"], now=NOW, registry=registry(Prior))
    assert not store.root.exists()


def test_a_champion_taken_by_another_trainer_stays(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(history(), store, now=NOW, registry=registry(Prior))
    grown, now = later(20)
    real = ModelStore.save

    def overtaken(self: ModelStore, bundle: Bundle, **more: Any) -> Any:
        version = real(self, bundle, **more)
        other = real(self, Bundle(bundle.estimator, {}, {"x": 1}, bundle.arrays), **more)
        self.promote(bundle.estimator, other.id, reason="another trainer", at=now.isoformat())
        return version

    monkeypatch.setattr(Prior, "factor", 0.99)
    monkeypatch.setattr(ModelStore, "save", overtaken)
    (done,) = train(grown, store, now=now, registry=registry(Prior))
    assert done.decision == "kept"
    assert [e.reason for e in store.log("prior") if e.action == "promote"][-1] == "another trainer"


class TestLoading:
    def test_without_a_champion_the_prior_answers_and_says_so(self, store: ModelStore) -> None:
        loaded, notes = load_estimators(store, registry=registry(Prior, Site))
        assert list(loaded) == ["prior"]
        assert notes == [
            "prior: no champion; it answers from its prior",
            "site: no champion, and no prior; train it",
        ]

    def test_one_without_a_prior_is_fitted_where_there_is_history(self, store: ModelStore) -> None:
        loaded, notes = load_estimators(store, registry=registry(Site), history=history())
        assert list(loaded) == ["site"] and "without a backtest" in notes[0]

    def test_a_damaged_champion_gives_way_to_its_ancestor_flagged(self, store: ModelStore) -> None:
        (first,) = train(history(), store, now=NOW, registry=registry(Prior))
        second = store.save(Bundle("prior", {}, {}, {"hours": np.ones(3)}), created=NOW.isoformat())
        store.promote("prior", second.id, reason="test", at=NOW.isoformat())
        (second.folder / "arrays.npz").write_bytes(b"x")
        loaded, notes = load_estimators(store, registry=registry(Prior))
        assert any("arrays.npz" in note for note in notes)
        assert notes[-1] == f"prior: answers from the earlier champion {first.version}"
        assert len(loaded["prior"].hours_) > 100  # type: ignore[attr-defined]

    def test_a_champion_that_its_code_no_longer_reads_gives_way_too(self, store: ModelStore) -> None:
        version = store.save(
            Bundle("prior", {}, {}, {"of_another_kind": np.ones(3)}), created=NOW.isoformat()
        )
        store.promote("prior", version.id, reason="test", at=NOW.isoformat())
        loaded, notes = load_estimators(store, registry=registry(Prior))
        assert "KeyError" in notes[0] and notes[-1] == "prior: no champion; it answers from its prior"
        assert list(loaded) == ["prior"]

    def test_other_library_versions_are_told_in_one_line(
        self, store: ModelStore, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
    ) -> None:
        train(history(), store, now=NOW, registry=registry(Prior))
        monkeypatch.setattr(manifest, "libraries", lambda: {"numpy": "99.0"})
        _, notes = load_estimators(store, registry=registry(Prior))
        assert len(notes) == 1 and "(here 99.0)" in notes[0] and "\n" not in notes[0]
        assert not [w for w in recwarn if issubclass(w.category, VersionWarning)]

    def test_a_champion_that_cannot_be_brought_up_to_date_answers_as_it_was_tested(
        self, store: ModelStore
    ) -> None:
        version = store.save(
            Bundle("forgetful", {}, {}, {"hours": np.ones(3)}),
            created=NOW.isoformat(),
            lineage=Lineage(window=("2026-01-01T00:00:00+00:00", "2026-02-20T00:00:00+00:00")),
        )
        store.promote("forgetful", version.id, reason="test", at=NOW.isoformat())
        loaded, notes = load_estimators(store, registry=registry(Forgetful), history=history())
        assert list(loaded) == ["forgetful"]
        assert notes == ["forgetful: not brought up to date (KeyError: 'nothing')"]

    def test_a_plugin_that_does_not_load_is_told(self, store: ModelStore) -> None:
        failure = Failure("absent", "x:Y", "pkg 1", "ModuleNotFoundError: x")
        _, notes = load_estimators(store, registry=registry(Prior, failures=(failure,)))
        assert notes[0] == "plugin not loaded: absent (x:Y of pkg 1): ModuleNotFoundError: x"


def test_fit_all_leaves_out_what_can_neither_fit_nor_answer() -> None:
    fitted = fit_all(history(), registry=registry(Broken, Prior, Site))
    assert sorted(fitted) == ["prior", "site"]
    assert sorted(fit_all(History(), registry=registry(Prior, Site))) == ["prior"]


def test_a_preferred_estimator_answers_for_its_kind() -> None:
    named = {"prior": Prior(), "site": Site()}
    assert preferred(named, {"training": "site"})["training"] is named["site"]
    assert preferred(named, {}) == named
    with pytest.raises(InputError, match=r"estimators\.training: 'nope' is no estimator"):
        preferred(named, {"training": "nope"})
    with pytest.raises(InputError, match="answers for realtime"):
        preferred({"realtime": load("realtime")()}, {"training": "realtime"})


@pytest.fixture(scope="module")
def sample() -> Any:
    return synthesise(0, days=30)


@pytest.mark.slow
def test_the_built_in_estimators_train_on_the_sample_cluster(sample: Any, tmp_path: Any) -> None:
    """Every one is fitted and decided on, in two processes as in one, and the champions load up to date."""
    stores = {}
    for jobs in (1, 2):
        store = ModelStore(tmp_path / str(jobs))
        done = train(sample.history, store, jobs=jobs, now=sample.now, timezone="Europe/Berlin")
        assert {d.name for d in done} >= {
            "batch_inference",
            "quantization",
            "realtime",
            "recurring",
            "training",
        }
        assert not [d for d in done if d.decision == "failed"], done
        stores[jobs] = {
            str(p.relative_to(store.root)): p.read_bytes() for p in sorted(store.root.rglob("*.*"))
        }
        assert not store.verify()
    assert stores[1] == stores[2]
    # case D9: a champion's size has a budget, here 5 MB, and none is a pickle
    assert all(version.size < 5_000_000 for version in store.list())
    assert {p.suffix for p in store.root.rglob("*.*") if p.is_file()} <= {
        ".json",
        ".jsonl",
        ".npz",
        ".txt",
        "",
    }
    loaded, _ = load_estimators(store, timezone="Europe/Berlin", history=sample.history)
    assert set(loaded) >= {"batch_inference", "quantization", "realtime", "recurring", "training"}
    hours = pd.date_range(sample.now.floor("h"), periods=24, freq="h")
    series = sample.history.traffic["series_id"].iloc[0]
    X = pd.DataFrame({"unique_id": series, "ds": hours})
    assert loaded["realtime"].basis(X).str.startswith("site history").all()
    # case D9: in a fresh process the champions predict the same; case D8: and in a forked pool and in loky
    champions, _ = load_estimators(store, timezone="Europe/Berlin")
    rows = {name: asked_of(estimator, sample.history) for name, estimator in champions.items()}
    mine = {name: fingerprint(champions[name], rows[name]) for name in champions}
    script = (
        "import pickle, sys\n"
        "from tidegrid.models import ModelStore\n"
        "from tidegrid.pipeline.train import load_estimators\n"
        "import hashlib\n"
        "rows = pickle.load(open(sys.argv[2], 'rb'))\n"
        "found, _ = load_estimators(ModelStore(sys.argv[1]), timezone='Europe/Berlin')\n"
        "for name, X in rows.items():\n"
        "    q = found[name].predict_quantiles(X, (0.1, 0.5, 0.9)).to_numpy()\n"
        "    print(name, hashlib.sha256(q.tobytes()).hexdigest())\n"
    )
    with (tmp_path / "rows").open("wb") as handle:
        pickle.dump(rows, handle)
    command = [sys.executable, "-c", script, str(store.root), str(tmp_path / "rows")]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    assert dict(line.split() for line in told.splitlines()) == mine
    busy = multiprocessing.get_context("fork").Process(target=spin, daemon=True)
    busy.start()  # a neighbour that wants the whole of a core
    with multiprocessing.get_context("fork").Pool(2) as pool:
        answers = {name: pool.apply_async(fingerprint, (champions[name], rows[name])) for name in mine}
        assert {name: answer.get(timeout=120) for name, answer in answers.items()} == mine
    calls = (delayed(champions[name].predict_quantiles)(rows[name], (0.1, 0.5, 0.9)) for name in mine)
    for name, quantiles in zip(mine, Parallel(n_jobs=2)(calls), strict=True):
        assert hashlib.sha256(quantiles.to_numpy().tobytes()).hexdigest() == mine[name]
    busy.terminate()


def spin() -> None:
    """Keep a core busy until it is stopped, or for half a minute."""
    end = time.process_time() + 30
    while time.process_time() < end:
        pass


def asked_of(estimator: Estimator, history: History) -> pd.DataFrame:
    """A few rows of a history that an estimator can answer."""
    X = rows_of(estimator, history).X
    return X.iloc[-40:].reset_index(drop=True)


def fingerprint(estimator: Estimator, X: pd.DataFrame) -> str:
    """The hash of an estimator's answers."""
    return hashlib.sha256(estimator.predict_quantiles(X, (0.1, 0.5, 0.9)).to_numpy().tobytes()).hexdigest()
