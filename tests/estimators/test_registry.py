"""Discovery: built-in estimators and plugins alike, failures told, duplicates refused."""

import sys
import textwrap
from importlib.metadata import EntryPoint, PathDistribution
from pathlib import Path

import pytest

from tidegrid.errors import InputError
from tidegrid.estimators import Estimator
from tidegrid.estimators.registry import GROUP, discover, estimators, load

BUILT_IN = ("batch_inference", "quantization", "realtime", "recurring", "training")

MODULE = """
from typing import ClassVar
from tidegrid.estimators import Estimator

class {cls}(Estimator):
    name: ClassVar[str] = "{name}"
    kind: ClassVar[str] = "any"
    features: ClassVar[tuple] = ()
    def fit(self, X, y, *, observed=None, known_at=None): return self
    def predict_quantiles(self, X, levels=(0.5,)): raise NotImplementedError
    def basis(self, X): raise NotImplementedError
    def to_bundle(self): raise NotImplementedError
    @classmethod
    def from_bundle(cls, bundle): return cls()
"""


class Site:
    """A folder of installed distributions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: list[EntryPoint] = []

    def install(self, project: str, name: str, module: str, code: str, value: str) -> None:
        (self.folder / f"{module}.py").write_text(textwrap.dedent(code))
        info = self.folder / f"{project.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {module}:{value}\n")
        self.entries += list(PathDistribution(info).entry_points)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield Site(tmp_path)  # type: ignore[misc]
    for name in set(sys.modules) - before:
        if name.startswith("plug_"):
            del sys.modules[name]


def test_the_built_in_estimators_are_registered_like_any_other() -> None:
    registry = discover()
    assert not [failure for failure in registry.failures if failure.name in BUILT_IN]
    assert set(BUILT_IN) <= set(registry.classes)
    for name in BUILT_IN:
        assert issubclass(registry.classes[name], Estimator) and registry.sources[name].startswith(
            "tidegrid "
        )


def test_a_plugin_is_found_under_its_name(site: Site) -> None:
    site.install("my-plugin", "mine", "plug_mine", MODULE.format(cls="Mine", name="mine"), "Mine")
    assert list(estimators(site.entries)) == ["mine"]
    assert load("mine", site.entries).__name__ == "Mine"
    assert discover(site.entries).sources == {"mine": "my-plugin 1.0"}


@pytest.mark.parametrize(
    ("code", "value", "says"),
    [
        ("import a_library_that_is_not_there", "Mine", "ModuleNotFoundError"),
        ("x = 1", "Mine", "AttributeError"),
        ("def (", "Mine", "SyntaxError"),
        ("raise SystemExit(3)", "Mine", "SystemExit"),
        ("Mine = 3", "Mine", "not a subclass"),
        ("class Mine: name = 'mine'", "Mine", "not a subclass"),
        (MODULE.format(cls="Mine", name="other"), "Mine", "calls itself 'other'"),
        (
            "from tidegrid.estimators import Estimator\nclass Mine(Estimator): name = 'mine'",
            "Mine",
            "lacks basis",
        ),
        (
            MODULE.format(cls="Mine", name="mine") + "    def __init__(self, path): self.path = path\n",
            "Mine",
            "without arguments",
        ),
        (MODULE.format(cls="Mine", name="mine") + "    features = ('gpus',)\n", "Mine", "not a Feature"),
        (
            "from tidegrid.estimators.simple import PointEstimator\n"
            "class Mine(PointEstimator):\n"
            "    name, features = 'mine', ()\n"
            "    def learn(self, X, hours): return {}\n"
            "    def point(self, X, learnt): return X\n",
            "Mine",
            "lacks the class attribute kind",
        ),
    ],
)
def test_a_plugin_that_fails_is_told_and_stops_no_other(site: Site, code: str, value: str, says: str) -> None:
    site.install("good", "good", "plug_good", MODULE.format(cls="Good", name="good"), "Good")
    site.install("bad", "mine", "plug_bad", code, value)
    registry = discover(site.entries)
    assert list(registry.classes) == ["good"]
    (failure,) = registry.failures
    assert failure.name == "mine" and failure.distribution == "bad 1.0" and says in failure.problem
    assert "\n" not in str(failure)
    with pytest.raises(InputError, match="does not load"):
        load("mine", site.entries)
    assert load("good", site.entries).__name__ == "Good"


def test_two_distributions_under_one_name_are_refused_and_both_named(site: Site) -> None:
    site.install("one", "mine", "plug_one", MODULE.format(cls="One", name="mine"), "One")
    site.install("two", "mine", "plug_two", MODULE.format(cls="Two", name="mine"), "Two")
    with pytest.raises(InputError, match=r"one 1\.0 .*two 1\.0"):
        discover(site.entries)


def test_one_distribution_seen_twice_is_no_duplicate(site: Site) -> None:
    """As with a source tree on the path beside its own installation."""
    site.install("one", "mine", "plug_one", MODULE.format(cls="One", name="mine"), "One")
    assert list(discover(site.entries * 2).classes) == ["mine"]


def test_an_unknown_name_is_refused_with_those_that_there_are(site: Site) -> None:
    site.install("one", "mine", "plug_one", MODULE.format(cls="One", name="mine"), "One")
    with pytest.raises(InputError, match="use one of: mine"):
        load("their", site.entries)
    with pytest.raises(InputError, match="none"):
        load("their", [])
