"""Laws of the loop: nothing moves while nothing changes, stale files start nothing, bands follow what came."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rolling_site import HOUR, START, Curve, Told, World

from tidegrid.data import History
from tidegrid.models import ModelStore
from tidegrid.pipeline import control
from tidegrid.pipeline.bands import FIRST_WIDTH, Widths, widened, widths_of
from tidegrid.pipeline.champions import load_estimators
from tidegrid.pipeline.control import Settings, tick
from tidegrid.pipeline.decide import decide
from tidegrid.pipeline.fallback import SureDemand
from tidegrid.pipeline.forecast import Estimating
from tidegrid.pipeline.hours import record_of
from tidegrid.pipeline.memory import RUNNING, WAITING, Hour, Outcome, Watched, iso
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.rolling import StateStore, accuracy
from tidegrid.pipeline.site import Site
from tidegrid.pipeline.train import train
from tidegrid.pipeline.worlds.files import Files

POLICY = Policy(horizon_hours=24, lookahead_hours=0)


def starts_by_tick(folder: Path, seed: int) -> list[dict[str, pd.Timestamp]]:
    """Eight GPUs that are busy for half a day, eight jobs in the queue, durations known: what eight ticks plan."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    world, state = World(folder / "site", gpus=8, node_size=8), StateStore(folder / "state.db")
    world.run("r", 0, 8, 12)
    for k in range(8):
        world.submit(f"j{k}", int(2 ** rng.integers(0, 4)), int(rng.integers(1, 9)), int(rng.integers(1, 10)))
    found = []
    for _ in range(8):
        commit = tick(
            state, Files(world.write()), world.now, Settings(policy=POLICY), estimators={"recurring": Told()}
        )
        kept = state.plan(commit.tick)
        assert kept is not None
        found.append({p["job"]: world.now + p["start"] * HOUR for p in kept["plan"]["placements"]})
        world.obey(commit.document)
        world.advance()
    return found


@pytest.mark.parametrize("seed", range(4))
def test_nothing_moves_while_nothing_but_time_changes(tmp_path: Path, seed: int) -> None:
    first, *later = starts_by_tick(tmp_path / "s", seed)
    for found in later:
        assert {job: at for job, at in found.items() if job != "r" and job in first} == {
            job: at for job, at in first.items() if job != "r"
        }


@pytest.mark.parametrize(("price", "first"), [(0.0, "late"), (50.0, "early")])
def test_a_told_start_is_kept_where_moving_it_has_a_price(tmp_path: Path, price: float, first: str) -> None:
    """A job is told to start next; one that is worth more arrives, which takes its turn where told starts are free."""
    world, state = World(tmp_path / "site", gpus=8, node_size=8), StateStore(tmp_path / "state.db")
    settings = Settings(policy=POLICY.model_copy(update={"promise_price": price}))
    world.run("r", 0, 8, 4)
    world.submit("early", 8, 4, 4)
    for arrival in ("late", None):
        commit = tick(state, Files(world.write()), world.now, settings, estimators={"recurring": Told()})
        world.obey(commit.document)
        world.advance()
        if arrival is not None:
            world.submit(arrival, 8, 4, 9)
    kept = state.plan(commit.tick)
    assert kept is not None
    at = {p["job"]: p["start"] for p in kept["plan"]["placements"]}
    assert min(("early", "late"), key=at.__getitem__) == first


def test_on_stale_files_nothing_is_started_and_that_is_told(tmp_path: Path) -> None:
    world, state = World(tmp_path / "site", gpus=2), StateStore(tmp_path / "state.db")
    world.submit("j", 1, 3, 5)
    folder = world.write()
    commit = tick(
        state, Files(folder), START + 3 * 24 * HOUR, Settings(policy=POLICY), estimators={"recurring": Told()}
    )
    assert commit.document["start"] == []
    told = [event["text"] for event in commit.document["events"] if event["kind"] == "stale"]
    assert len(told) == 1 and "24 h" in told[0]
    later = tick(
        state, Files(folder), START + 3 * 24 * HOUR, Settings(policy=POLICY), estimators={"recurring": Told()}
    )
    assert later == commit
    fresh = Policy(horizon_hours=24, stale_hours=100)
    other = StateStore(tmp_path / "other.db")
    commit = tick(
        other, Files(folder), START + 3 * 24 * HOUR, Settings(policy=fresh), estimators={"recurring": Told()}
    )
    assert [one["job"] for one in commit.document["start"]] == ["j"]


def outcome(start: float, end: float, told: bool = True) -> Outcome:
    """A job that was told, at START, to start between 1 and 3 hours later and to end between 4 and 6."""
    at = {h: iso(START + h * HOUR) for h in (0, 1, 2, 3, 4, 5, 6)}
    band = (at[1], at[2], at[3], at[4], at[5], at[6]) if told else (at[0], at[0], at[0], at[4], at[5], at[6])
    return Outcome(
        "j",
        iso(START + end * HOUR),
        "completed",
        1,
        at[0],
        iso(START + start * HOUR),
        end - start,
        at[0],
        *band,
    )


def test_bands_widen_at_a_miss_and_narrow_at_a_hit_for_starts_as_for_ends() -> None:
    later = START + 20 * HOUR
    assert widths_of([], [], later) == Widths()
    missed_start = widths_of([outcome(3.5, 5)], [], later)
    assert missed_start.start > FIRST_WIDTH and missed_start.end < FIRST_WIDTH
    missed_end = widths_of([outcome(2, 8)], [], later)
    assert missed_end.end > FIRST_WIDTH and missed_end.start < FIRST_WIDTH
    assert widths_of([outcome(9, 9, told=False)], [], later) == Widths()
    lost = widths_of([replace(outcome(9, 9), status="lost")], [], later)
    assert lost.start > FIRST_WIDTH and lost.end == FIRST_WIDTH


def test_a_band_counts_once_it_is_past_whether_or_not_the_job_has_come() -> None:
    """Else short waits would count first, and narrow the bands of the long ones."""
    whole = outcome(2, 5)
    known = {name: getattr(whole, name) for name in Watched.__dataclass_fields__ if hasattr(whole, name)}
    runs = Watched(**known | {"state": RUNNING})
    waits = replace(runs, state=WAITING, started=None)
    in_the_band, past_the_start, past_the_end = (START + h * HOUR for h in (2.5, 3.5, 6.5))
    assert widths_of([], [waits], in_the_band) == widths_of([], [runs], in_the_band) == Widths()
    assert (
        widths_of([], [runs], past_the_start).start
        < FIRST_WIDTH
        < widths_of([], [waits], past_the_start).start
    )
    assert widths_of([], [runs], past_the_end).end > FIRST_WIDTH > widths_of([whole], [], past_the_end).end


@given(st.lists(st.booleans(), min_size=400, max_size=400).map(np.array))
def test_a_width_stays_within_its_bounds(hits: np.ndarray) -> None:
    widths = Widths()
    for hit in hits:
        widths = widths.after(bool(hit), None)
    assert 0.25 <= widths.start <= 20 and widths.end == FIRST_WIDTH


@given(
    st.lists(st.floats(0, 100), min_size=3, max_size=3).map(sorted).map(np.array),
    st.floats(0.25, 20),
    st.floats(0, 100),
)
def test_a_widened_band_is_ordered_and_holds_what_is_planned(
    band: np.ndarray, width: float, planned: float
) -> None:
    low, middle, high = widened(band, width, planned)
    assert 0 <= low <= middle <= high and low <= planned <= high


def test_an_app_keeps_its_gpus_where_it_gains_nothing_by_others(tmp_path: Path) -> None:
    """A night of even traffic, jobs that come and go: no GPU enters or leaves, and nothing is swapped in the plan."""
    world = World(tmp_path / "site", gpus=16, apps={"chat": (9, 4, [3.0])}, held={"chat": [12, 13, 14, 15]})
    state, rng = StateStore(tmp_path / "state.db"), np.random.default_rng(1)
    estimators = {"recurring": Told(), "realtime": Curve({"chat": [3.0]})}
    for k in range(16):
        if k % 2 == 0:
            world.submit(f"j{k}", int(rng.choice([1, 2, 4, 8])), float(rng.integers(1, 6)), 5)
        commit = tick(state, Files(world.write()), world.now, Settings(policy=POLICY), estimators=estimators)
        (move,) = commit.document["apps"]
        assert (move["enter"], move["leave"]) == ([], [])
        kept = state.plan(commit.tick)
        assert kept is not None
        cells = [set(held) for held in kept["plan"]["apps"][0]["cells"]]
        assert all(one == cells[0] for one in cells)
        world.obey(commit.document)
        world.advance(30)


def test_errors_of_a_fallback_do_not_widen_the_model_s_band() -> None:
    hours = [Hour("chat", iso(START + k * HOUR), 1.0, 2.0, 3.0, 9.0, "fallback") for k in range(30)]
    assert record_of(hours).empty
    assert len(record_of([replace(one, model="realtime") for one in hours])) == 30


def test_a_fallback_does_not_repeat_an_outage() -> None:
    """Eight busy hours were lost a week ago: the same hours now are planned for, not for nothing."""
    ds = pd.date_range(START - 28 * 24 * HOUR, START, freq="h", inclusive="left")
    y = np.where((ds.hour >= 8) & (ds.hour < 20), 100.0, 20.0)
    lost = (ds >= START - 7 * 24 * HOUR + 9 * HOUR) & (ds < START - 7 * 24 * HOUR + 17 * HOUR)
    traffic = pd.DataFrame({"series_id": "chat", "timestamp": ds, "value": np.where(lost, 0.0, y)})
    sure = SureDemand(None, lambda: traffic)
    X = pd.DataFrame({"unique_id": "chat", "ds": pd.date_range(START + 9 * HOUR, periods=8, freq="h")})
    found, basis = sure.answer(X, (0.5,))
    assert found[0.5].min() > 50
    assert basis.str.startswith("site history: the same hour a week before").all()


def test_a_damaged_champion_is_refitted_from_history_before_its_prior_answers(
    tmp_path: Path, sample: Site
) -> None:
    store = ModelStore(tmp_path / "models")
    store_folder = tmp_path / "models"
    train(sample.history, store, ["recurring"], now=sample.now)
    for file in store_folder.rglob("*.npz"):
        file.write_bytes(b"damaged")
    found, notes = load_estimators(store, history=sample.history)
    basis = found["recurring"].basis(sample.requests.assign(requested_walltime_h=np.nan).head(3))
    assert basis.str.startswith("site history").all()
    assert any(note.startswith("recurring: no champion; fitted afresh") for note in notes)


class Died(BaseException):
    """The process was killed."""


def test_a_tick_that_was_killed_in_its_training_commits_the_same_when_run_again(
    tmp_path: Path, sample: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample.write(tmp_path / "site")
    names = ["quantization", "realtime", "recurring"]
    known = control.discover()
    few = type(known)({name: known.classes[name] for name in names}, known.sources, ())
    for module in ("control", "champions", "train"):
        monkeypatch.setattr(f"tidegrid.pipeline.{module}.discover", lambda: few)

    def run(where: str) -> str:
        state = StateStore(tmp_path / f"{where}.db")
        models = tmp_path / where
        models.mkdir(exist_ok=True)
        return tick(
            state, Files(tmp_path / "site"), sample.now, Settings(policy=POLICY), models=ModelStore(models)
        ).text

    undisturbed = run("undisturbed")
    whole, left = ModelStore.promote, [1]

    def promote(self: ModelStore, *given: Any, **more: Any) -> Any:
        if not left[0]:
            raise Died
        left[0] -= 1
        return whole(self, *given, **more)

    monkeypatch.setattr(ModelStore, "promote", promote)
    with pytest.raises(Died):
        run("killed")
    monkeypatch.setattr(ModelStore, "promote", whole)
    assert run("killed") == undisturbed


def test_a_plan_tells_lost_jobs_and_those_that_are_listed_twice(tmp_path: Path) -> None:
    world = World(tmp_path / "site", gpus=8, down=(5,))
    world.run("left", 0, 4, 5)
    world.run("right", 4, 4, 5)
    world.submit("both", 1, 1, 5)
    world.waiting["left"] = {k: v for k, v in world.running["left"].items() if k in world.waiting["both"]}
    site = Site.read(world.write(), now=world.now)
    decision = decide(site.state(), Estimating({"recurring": Told()}, History()), POLICY)
    assert decision.state.lost["job_id"].tolist() == ["right"]
    assert decision.state.twice == ("left",)
    assert [one.job for one in decision.starts] == ["both"]


def test_an_unchanged_queue_with_an_app_still_follows_its_demand(tmp_path: Path) -> None:
    curve = [1.0, 1.0, 1.0, 3.0, 3.0]
    world = World(tmp_path / "site", apps={"chat": (9, 2, curve)}, held={"chat": [0]})
    state = StateStore(tmp_path / "state.db")
    policy = Policy(horizon_hours=6, lookahead_hours=0, demand_quantile=0.5)
    for _ in range(5):
        answers = {"recurring": Told(), "realtime": Curve({"chat": curve})}
        world.obey(
            tick(state, Files(world.write()), world.now, Settings(policy=policy), estimators=answers).document
        )
        world.advance()
    assert len(world.held["chat"]) == 3 and accuracy(state).unmet == 0
