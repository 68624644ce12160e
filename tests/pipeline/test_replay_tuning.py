"""The search over the planner's parameters."""

import json
from pathlib import Path

import numpy as np
import pytest
from replay_traces import busy

from tidegrid.errors import InputError
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.replay import replay
from tidegrid.pipeline.replay.run import ROUNDS
from tidegrid.pipeline.replay.tuning import read_parameters, tune, with_parameters

PARAMETERS = {"job_quantile": (0.5, 0.8), "rounds": (0, 3)}


def test_the_grid_tries_every_setting_and_each_row_is_what_a_replay_gives() -> None:
    trace = busy(jobs=20, hours=10)
    found = tune(trace, PARAMETERS, name="rolling_perfect_demand", search="grid", unmet_share=1.0)
    assert len(found.table) == 4
    assert found.within
    for row in found.table.to_dict(orient="records"):
        policy = Policy(job_quantile=row["job_quantile"])
        alone = replay(trace, ["rolling_perfect_demand"], policy, rounds=int(row["rounds"]))[0].figures
        assert row["value"] == alone["value"]
        assert row["unmet_share"] == pytest.approx(alone["unmet_share"])
        assert row["jct_mean_h"] == alone["jct_h"]["mean"]
    best = found.table[found.table["best"]]
    assert len(best) == 1
    assert best["value_share"].iloc[0] == found.table["value_share"].max()
    assert found.best == {k: best[k].iloc[0] for k in PARAMETERS}
    assert found.policy.job_quantile == found.best["job_quantile"]
    assert found.options["rounds"] == found.best["rounds"]


def test_a_search_by_coordinates_starts_at_the_base_and_never_ends_below_it() -> None:
    traces = {"a": busy(1, jobs=15, hours=8), "b": busy(2, jobs=15, hours=8)}
    base = Policy(job_quantile=0.5)
    found = tune(traces, PARAMETERS, base=base, name="rolling_perfect_demand", unmet_share=1.0)
    first = found.table.iloc[0]
    assert (first["job_quantile"], first["rounds"]) == (0.5, ROUNDS)
    assert found.table["value_share"].max() >= first["value_share"]
    assert not found.table.duplicated(list(PARAMETERS)).any()
    again = tune(traces, PARAMETERS, base=base, name="rolling_perfect_demand", unmet_share=1.0, jobs=2)
    assert found.table.equals(again.table)


def test_where_no_setting_keeps_the_share_the_least_unmet_is_the_best() -> None:
    found = tune(
        busy(jobs=15, hours=8),
        {"shortfall_weight": (0.0, 8.0)},
        name="rolling_perfect_durations",
        unmet_share=0.0,
    )
    best = found.table[found.table["best"]].iloc[0]
    assert best["unmet_share"] == found.table["unmet_share"].min()
    assert found.within == (best["unmet_share"] == 0)


def test_parameters_that_do_not_exist_or_cannot_be_are_named() -> None:
    with pytest.raises(InputError, match="magic"):
        tune(busy(jobs=2), {"magic": (1.0,)})
    with pytest.raises(InputError, match="decay"):
        tune(busy(jobs=2), {"decay": (2.0,)})
    with pytest.raises(InputError, match="no values"):
        tune(busy(jobs=2), {"decay": ()})
    with pytest.raises(InputError, match="random"):
        tune(busy(jobs=2), {"decay": (1.0,)}, search="random")
    for wrong in (
        {"rounds": 1.5},
        {"rounds": -1},
        {"rounds": True},
        {"shortness": "much"},
        {"shortness": np.nan},
    ):
        with pytest.raises(InputError, match=next(iter(wrong))):
            with_parameters(wrong)
    policy, options = with_parameters({"decay": 0.9, "shortness": 0.1}, options={"rounds": 3})
    assert policy == Policy(decay=0.9, shortness=0.1)
    assert options == {"rounds": 3}


def test_a_file_of_parameters_takes_all_that_a_setting_takes(tmp_path: Path) -> None:
    path = tmp_path / "parameters.json"
    path.write_text(json.dumps({"decay": 0.9, "shortness": 0.4, "rounds": 2}))
    policy, options = read_parameters(path)
    assert policy == Policy(decay=0.9, shortness=0.4) and options == {"rounds": 2}
    for text, said in (
        ("[]", "is not a JSON object"),
        ('{"magic": 1}', "'magic' is not a parameter"),
        ('{"decay": 2}', "decay: 2 is out of range; give a number less than or equal to 1"),
        ('{"shortness": "much"}', 'shortness: "much" is not a number'),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=said) as caught:
            read_parameters(path)
        assert caught.value.file == str(path)
