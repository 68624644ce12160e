"""Sites say it in their own words: nodes, windows, tenants, floors, and running jobs by node."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegrid.data import (
    REQUESTS,
    RUNNING,
    Cluster,
    gpu_ids,
    place_running,
    read_cluster,
    rounded_sizes,
    validate,
    write_cluster,
)
from tidegrid.data.checks import settle
from tidegrid.data.source import Log, Source
from tidegrid.errors import InputError

NOW = "2026-03-02T00:00:00Z"


def description(**more: Any) -> dict[str, Any]:
    return {
        "timezone": "Europe/Berlin",
        "pools": [
            {"id": "a100", "gpus": 24, "gpu_type": "A100", "node_size": 8, "placement": "node", "nodes": "a[1-3]"},
            {"id": "v100", "gpus": 8, "gpu_type": "V100", "node_size": 4, "nodes": ["v1", "v2"]},
        ],
        "apps": [{"id": "chat", "pool": "a100", "held": ["a3:4-7"], "capacity": {"gpus_per_replica": 4}}],
    } | more  # fmt: skip


def test_nodes_have_names(tmp_path: Path) -> None:
    cluster = Cluster.from_dict(description(country="DE", subdivision="BY"))
    pool = cluster.pool("a100")
    assert pool.nodes == ("a1", "a2", "a3") and list(pool.gpus_of("a2")) == list(range(8, 16))
    assert pool.node_of(17) == "a3" and cluster.pool_of_node("v2").id == "v100"
    assert pool.within(["a1", "a2", "elsewhere"]) == [(0, 16)] and pool.within(["a1", "a3"]) == [
        (0, 8),
        (16, 8),
    ]
    assert cluster.apps[0].held == (20, 21, 22, 23) and cluster.country == "DE"
    write_cluster(cluster, tmp_path / "cluster.json")
    assert read_cluster(tmp_path / "cluster.json") == cluster
    with pytest.raises(InputError, match="there is no node 'x1'"):
        cluster.pool_of_node("x1")


def test_windows_become_steps() -> None:
    """A step that a window touches is closed; GPUs that are down are closed for good."""
    windows = [
        {"nodes": "a[1-2]", "from": "2026-03-02T06:30:00Z", "to": "2026-03-02T10:00:00Z", "kind": "drain"},
        {"pool": "v100", "gpus": [0, 1, 3], "to": "2026-03-02T01:00:01Z"},
        {"pool": "v100", "from": "2026-03-03T00:00:00Z"},
        {"nodes": ["a3"], "from": "2026-03-01T00:00:00Z", "to": "2026-03-02T00:00:00Z"},
    ]
    value = description(maintenance=windows)
    value["pools"][1]["down"] = ["v2"]
    cluster = Cluster.from_dict(value)
    closed = cluster.closed_steps(pd.Timestamp(NOW), 60, 30)
    assert closed == {
        "a100": [{"gpus": [0, 16], "from": 6, "to": 10, "kind": "drain"}],
        "v100": [
            {"gpus": [4, 8], "from": 0, "to": 30, "kind": "down"},
            {"gpus": [0, 2], "from": 0, "to": 2, "kind": "down"},
            {"gpus": [3, 4], "from": 0, "to": 2, "kind": "down"},
            {"gpus": [0, 8], "from": 24, "to": 30, "kind": "down"},
        ],
    }
    assert Cluster.from_dict(cluster.to_dict()) == cluster


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("pools", 0, "nodes"), ["a1", "a2"], r"pools\[0\]\.nodes: 2 nodes of 8 GPUs are not 24 GPUs"),
        (("pools", 0, "nodes"), ["a1", "a1", "a2"], "node 'a1' is there twice"),
        (("pools", 1, "nodes"), ["a1", "v2"], r"pools\[1\]\.nodes: node 'a1' is there twice"),
        (("pools", 0, "nodes"), "a[1-", "is not a list"),
        (("pools", 0, "node_size"), None, "nodes have no size"),
        (("pools", 0, "gpus"), 20, "20 GPUs are no whole nodes of 8"),
        (("pools", 0, "gpus"), 10**9, r"pools\[0\]\.gpus"),
        (("pools", 0, "placement"), "heap", r"pools\[0\]\.placement"),
        (("pools", 0, "down"), ["a9"], r"pools\[0\]\.down: there is no node 'a9'"),
        (("pools", 0, "down"), ["a1:9"], "node 'a1' has 8 GPUs"),
        (("pools", 0, "id"), "a\x1b[2J", "control character"),
        (("apps", 0, "swap_cap"), 3, r"apps\[0\]\.swap_cap: 3 GPUs a step are less than a replica of 4"),
        (("apps", 0, "capacity"), {"gpus_per_replica": 12}, "a replica of 12 GPUs does not fit nodes of 8"),
        (("apps", 0, "capacity"), {"min_replicas": 25}, "always up take 25 GPUs, and pool 'a100' has 24"),
        (("apps", 0, "capacity"), {"min_replicas": 10**30}, r"apps\[0\]\.capacity\.min_replicas"),
        (("apps", 0, "capacity"), {"units_per_gpu_hour": 1e300}, "units_per_gpu_hour"),
        (("apps", 0, "series_share"), 0.5, r"shares of series 'chat' \(chat\) sum to 0\.5"),
        (("country",), "Germany", 'country: "Germany" cannot be used; write an ISO 3166 code'),
        (("tenants",), [{"id": "nlp", "limit": {"h100": 1}}], r"tenants\[0\]\.limit: there is no pool 'h100'"),
        (("tenants",), [{"id": "nlp", "limit": -1}], r"tenants\[0\]\.limit"),
        (("tenants",), [{"id": "x", "limit": 1}] * 2, r"tenants\[1\]\.id: 'x' is there twice"),
        (("maintenance",), [{"nodes": ["x"]}], r"maintenance\[0\]\.nodes: there is no node 'x'"),
        (("maintenance",), [{"pool": "x"}], r"maintenance\[0\]\.pool: there is no pool 'x'"),
        (("maintenance",), [{"gpus": [1]}], "indices need one pool"),
        (("maintenance",), [{"pool": "v100", "from": "9999-01-01T00:00:00Z"}], r"maintenance\[0\]\.from"),
        (("maintenance",), [{"pool": "v100", "from": "2026-03-02"}], "carries no time zone"),
        (("maintenance",), [{"pool": "v100", "from": NOW, "to": NOW}], "ends before it begins"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_its_field(path: tuple[str | int, ...], value: Any, said: str) -> None:
    out: Any = description()
    out["apps"][0]["held"] = [20, 21, 22, 23]
    at = out
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = value
    with pytest.raises(InputError, match=said) as error:
        Cluster.from_dict(out)
    assert error.value.fix and "\n" not in str(error.value) and "\x1b" not in str(error.value)


def test_apps_that_share_a_series_say_their_shares() -> None:
    apps = [{"id": name, "pool": "v100", "series_id": "web"} for name in ("a", "b")]
    with pytest.raises(InputError, match=r"shares of series 'web' \(a, b\) sum to 0"):
        Cluster.from_dict(description(apps=apps))
    shared = [app | {"series_share": share} for app, share in zip(apps, (0.7, 0.3), strict=True)]
    assert [app.share for app in Cluster.from_dict(description(apps=shared)).apps] == [0.7, 0.3]


def running(**cells: Any) -> dict[str, Any]:
    return {"job_id": "x", "kind": "training", "start_time": NOW} | cells


@pytest.mark.parametrize(
    ("cells", "pool", "ids"),
    [
        ({"pool": "a100", "gpu_ids": "0-1,6"}, "a100", [0, 1, 6]),
        ({"pool": "a100", "first_gpu": 3, "gpus": 7}, "a100", [3, 4, 5, 6, 7, 8, 9]),
        ({"held": "a2:0-1,6 a1:7"}, "a100", [7, 8, 9, 14]),
        ({"held": "a2=3"}, "a100", [8, 9, 10]),
        ({"held": "a3=4"}, "a100", [16, 17, 18, 19]),
        ({"held": "v1:2-3"}, "v100", [2, 3]),
    ],
)
def test_running_jobs_are_placed_however_they_are_told(
    cells: dict[str, Any], pool: str, ids: list[int]
) -> None:
    cluster = Cluster.from_dict(description())
    placed, _ = place_running(cluster, validate(pd.DataFrame([running(**cells)]), RUNNING))
    assert placed["pool"].tolist() == [pool] and gpu_ids(placed) == [ids]
    assert placed["first_gpu"].tolist() == [ids[0]] and placed["gpus"].tolist() == [len(ids)]


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"held": "a3=5"}, "held: node 'a3' has 4 GPUs that nothing else holds"),
        ({"held": "a3:4"}, "holds a GPU of app 'chat'"),
        ({"held": "a1=1 v1=1"}, "its nodes lie in 2 pools"),
        ({"held": "a1:8"}, "node 'a1' has 8 GPUs"),
        ({"held": "a1:0 a1:0"}, "a GPU is there twice"),
        ({"held": "a1"}, "'a1' does not say which GPUs"),
        ({"held": "a1=many"}, "does not say which GPUs"),
        ({"held": "b1=1"}, "there is no node 'b1'"),
        ({"pool": "a100", "gpu_ids": "0-99999999"}, "stands for more than"),
        ({"pool": "a100", "gpu_ids": "24"}, "GPU 24 lies outside its pool"),
        ({"pool": "v100", "gpu_ids": "0,2"}, "its GPUs are no neighbours"),
        ({"pool": "v100", "gpu_ids": "0-2"}, "not a power of two"),
        ({"pool": "v100", "first_gpu": 2, "gpus": 4}, "crosses a node"),
        ({"pool": "x", "first_gpu": 2, "gpus": 4}, "there is no pool 'x'"),
    ],
)
def test_running_jobs_that_fit_nowhere_are_set_aside_by_name(cells: dict[str, Any], said: str) -> None:
    cluster = Cluster.from_dict(description())
    rows = validate(pd.DataFrame([running(**cells), running(job_id="y", held="a1=1")]), RUNNING)
    with pytest.raises(InputError, match=said):
        place_running(cluster, rows)
    log = Log()
    placed, source = place_running(cluster, rows, Source(log=log))
    assert placed["job_id"].tolist() == ["y"] and [e.item for e in log.set_aside()] == ["job x"]
    assert source.row(0) == 3


@given(st.lists(st.tuples(st.sampled_from(("a1", "a2", "a3", "v1", "v2")), st.integers(1, 5)), max_size=12))
def test_no_gpu_is_held_twice_and_no_row_is_lost(counts: list[tuple[str, int]]) -> None:
    """A law over running jobs told by numbers of GPUs on a node."""
    cluster = Cluster.from_dict(description())
    rows = [running(job_id=f"j{i}", held=f"{node}={count}") for i, (node, count) in enumerate(counts)]
    table = validate(pd.DataFrame(rows, columns=["job_id", "kind", "start_time", "held"]), RUNNING)
    log = Log()
    placed, _ = place_running(cluster, table, Source(log=log))
    assert len(placed) + len(log.set_aside()) == len(rows)
    held = [(app.pool, gpu) for app in cluster.apps for gpu in app.held]
    if len(placed):
        held += [(p, g) for p, ids in zip(placed["pool"], gpu_ids(placed), strict=True) for g in ids]
    assert len(set(held)) == len(held)


def test_requests_say_where_for_whom_and_after_what() -> None:
    row = {
        "job_id": "a", "kind": "training", "submit_time": NOW, "gpus": 3, "group": "nlp", "nodes": 2,
        "allowed_pools": "a100 v100", "allowed_nodes": "a[1-2]", "after": "prep other", "array": "7", "array_limit": 2,
    }  # fmt: skip
    table = validate(pd.DataFrame([row, row | {"job_id": "b", "tenant": "own"}]), REQUESTS)
    assert table["tenant"].tolist() == ["nlp", "own"] and table["array_limit"].tolist() == [2, 2]
    with pytest.raises(InputError, match="array_limit: there is no array"):
        validate(pd.DataFrame([row | {"array": ""}]), REQUESTS)
    with pytest.raises(InputError, match="array_limit: its array has two"):
        validate(pd.DataFrame([row, row | {"job_id": "b", "array_limit": 3}]), REQUESTS)
    cluster = Cluster.from_dict(description())
    busy = validate(pd.DataFrame([running(held="a1=1")]), RUNNING)
    for cells, said in (
        ({"allowed_pools": "h100"}, "allowed_pools: the cluster has no 'h100'"),
        ({"allowed_nodes": "x[1-2]"}, "allowed_nodes: the cluster has no 'x1'"),
        ({"allowed_nodes": "x[1-"}, "is not a list"),
    ):
        with pytest.raises(InputError, match=said.replace("[", r"\[")):
            settle(cluster, (validate(pd.DataFrame([row | cells]), REQUESTS), Source()), (busy, Source()))
    queue, placed = settle(cluster, (table, Source()), (busy, Source()))
    assert len(queue[0]) == 2 and gpu_ids(placed[0]) == [[0]]


def test_sizes_that_a_line_rounds_up_are_told() -> None:
    row = {"kind": "training", "submit_time": NOW}
    asked = [48, 8, 24, 3, 5, 6, 7]
    queue = validate(pd.DataFrame([row | {"job_id": f"j{n}", "gpus": n} for n in asked]), REQUESTS)
    line = Cluster.from_dict({"pools": [{"id": "p", "gpus": 64, "gpu_type": "x"}]})
    assert rounded_sizes(line, queue) == [
        "6 requests get more GPUs than asked for, since a pool in a line gives powers of two: j48 (48 → 64), "
        'j24 (24 → 32), j3 (3 → 4), j5 (5 → 8), j6 (6 → 8) and 1 more; "placement": "node" gives whole sizes'
    ]
    by_node = {"id": "p", "gpus": 64, "gpu_type": "x", "node_size": 8, "placement": "node"}
    assert rounded_sizes(Cluster.from_dict({"pools": [by_node]}), queue) == []


def test_a_size_that_does_not_lie_evenly_on_its_nodes_is_told() -> None:
    row = {"kind": "training", "submit_time": NOW}
    asked = {"a": (11, ""), "b": (9, ""), "c": (3, "y"), "d": (3, "x"), "e": (12, "")}
    queue = validate(
        pd.DataFrame([row | {"job_id": name, "gpus": n, "gpu_type": on} for name, (n, on) in asked.items()]),
        REQUESTS,
    )
    pools = [
        {"id": "p", "gpus": 64, "gpu_type": "x", "node_size": 8, "placement": "node"},
        {"id": "q", "gpus": 64, "gpu_type": "y"},
    ]
    by_node = Cluster.from_dict({"pools": pools[:1]})
    told = "1 request gets more GPUs than asked for, since a job gets as many GPUs on each of its nodes: a (11 → 12)"
    assert rounded_sizes(by_node, queue[queue["gpu_type"] != "y"]) == [told]
    # a job is told of the pools that it may use alone
    line, node = rounded_sizes(Cluster.from_dict({"pools": pools}), queue)
    assert "a (11 → 16), b (9 → 16), c (3 → 4), e (12 → 16)" in line and node == told


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=5),
        lambda inside: st.lists(inside, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ("id", "gpus", "pools", "apps", "nodes", "held", "maintenance", "tenants", "capacity", "pool",
                 "node_size", "down", "gpu_type", "limit", "from", "placement", "series_share")
            ),
            inside,
            max_size=5,
        ),
        max_leaves=20,
    )
)  # fmt: skip
def test_no_json_can_crash_the_reader_of_a_cluster(value: Any) -> None:
    for candidate in (value, description() | (value if isinstance(value, dict) else {"pools": value})):
        try:
            Cluster.from_dict(candidate)
        except InputError as error:
            assert "\n" not in str(error)


def test_a_cluster_of_many_nodes_is_read_in_one_pass(tmp_path: Path) -> None:
    """Names are looked up, not searched for: this would not end otherwise."""
    pool = {
        "id": "p",
        "gpus": 100_000,
        "gpu_type": "x",
        "node_size": 1,
        "placement": "node",
        "nodes": "n[1-100000]",
    }
    value = {"pools": [pool], "maintenance": [{"nodes": "n[1-100000]", "kind": "drain"}]}
    (tmp_path / "cluster.json").write_text(json.dumps(value))
    cluster = read_cluster(tmp_path / "cluster.json")
    assert cluster.closed_steps(pd.Timestamp(NOW), 60, 1)["p"] == [
        {"gpus": [0, 100_000], "from": 0, "to": 1, "kind": "drain"}
    ]
