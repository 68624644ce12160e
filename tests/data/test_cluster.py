"""The cluster description: consistent, immutable, and refused by the name of what is wrong."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tidegrid.data import RUNNING, Cluster, block_size, check_running, read_cluster, validate, write_cluster
from tidegrid.errors import InputError


def description() -> dict[str, Any]:
    return {
        "timezone": "Europe/Berlin",
        "pools": [{"id": "h100", "gpus": 16, "gpu_type": "H100-SXM-80GB", "node_size": 8}],
        "apps": [{"id": "chat", "pool": "h100", "priority": 8, "swap_cap": 2, "held": [14, 15]}],
    }


def changed(path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    out: Any = description()
    at = out
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = value
    return out


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("pools", 0, "gpus"), 0, r"pools\[0\]\.gpus: pool 'h100' has 0 GPUs; give at least 1"),
        (("pools", 0, "gpus"), -4, r"pool 'h100' has -4 GPUs"),
        (("pools", 0, "gpus"), "16", r'pools\[0\]\.gpus: "16" is not a whole number'),
        (("pools",), [], "pools: is empty"),
        (("timezone",), "Berlin", "timezone: 'Berlin' is not a time zone"),
        (("country",), "ZZ", "country: there is no holiday calendar for 'ZZ'"),
        (("subdivision",), "BY", "subdivision: it has no country"),
        (("apps", 0, "pool"), "a100", r"apps\[0\]\.pool: there is no pool 'a100'"),
        (("apps", 0, "held"), [16], r"apps\[0\]\.held: GPU 16 is outside pool 'h100'"),
        (("apps", 0, "held"), [3, 3], r"apps\[0\]\.held: a GPU is there twice"),
        (("apps", 0, "priority"), 11, r"apps\[0\]\.priority: 11 is out of range"),
        (("apps", 0, "capacity"), {"units_per_gpu_hour": 0}, r"apps\[0\]\.capacity\.units_per_gpu_hour"),
        (("apps", 0, "capacity"), {"target_load": 1.5}, r"apps\[0\]\.capacity\.target_load"),
        (("apps", 0, "colour"), "red", r"apps\[0\]\.colour: is unknown"),
        (("pools", 0, "id"), "", r"pools\[0\]\.id"),
    ],
)
def test_a_bad_field_is_named(tmp_path: Path, path: tuple[str | int, ...], value: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        Cluster.from_dict(changed(path, value))
    assert error.value.fix and "\n" not in str(error.value)


def test_holidays_are_those_of_a_country_that_there_is() -> None:
    assert Cluster.from_dict(description() | {"country": "DE", "subdivision": "BY"}).subdivision == "BY"
    with pytest.raises(
        InputError, match="subdivision: there is no holiday calendar for 'XX'; use an ISO 3166"
    ):
        Cluster.from_dict(description() | {"country": "DE", "subdivision": "XX"})


def test_names_and_gpus_belong_to_one(tmp_path: Path) -> None:
    value = description()
    value["apps"].append({"id": "code", "pool": "h100", "held": [15]})
    with pytest.raises(InputError, match="GPU 15 is already held by 'chat'"):
        Cluster.from_dict(value)
    value["apps"][1] = {"id": "chat", "pool": "h100"}
    with pytest.raises(InputError, match=r"apps\[1\]\.id: 'chat' is there twice"):
        Cluster.from_dict(value)


def test_it_survives_its_file_and_cannot_be_changed(tmp_path: Path) -> None:
    cluster = Cluster.from_dict(description())
    write_cluster(cluster, tmp_path / "cluster.json")
    assert read_cluster(tmp_path / "cluster.json") == cluster
    assert cluster.gpus == 16 and cluster.apps[0].series == "chat" and not cluster.synthetic
    with pytest.raises(ValidationError):
        cluster.timezone = "UTC"
    (tmp_path / "cluster.json").write_text('{"pools": [')
    with pytest.raises(InputError, match="is not JSON"):
        read_cluster(tmp_path / "cluster.json")
    (tmp_path / "cluster.json").write_text("{}")
    with pytest.raises(InputError, match=r"cluster\.json, pools: is missing"):
        read_cluster(tmp_path / "cluster.json")


@pytest.mark.parametrize(
    ("first", "gpus", "pool", "said"),
    [
        (16, 1, "h100", "outside its pool"),
        (6, 4, "h100", "crosses a node"),
        (4, 16, "h100", "outside"),
        (12, 4, "h100", "holds a GPU of app 'chat'"),
        (0, 1, "a100", "there is no pool 'a100'"),
    ],
)
def test_running_blocks_fit_the_cluster(first: int, gpus: int, pool: str, said: str) -> None:
    cluster = Cluster.from_dict(description())
    row = {
        "job_id": "x",
        "kind": "training",
        "pool": pool,
        "first_gpu": first,
        "gpus": gpus,
        "start_time": "2026-03-02T00:00Z",
    }
    with pytest.raises(InputError, match=said):
        check_running(cluster, validate(pd.DataFrame([row]), RUNNING))
    check_running(
        cluster, validate(pd.DataFrame([row | {"pool": "h100", "first_gpu": 8, "gpus": 4}]), RUNNING)
    )


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=20))
def test_block_sizes_are_the_next_powers_of_two(counts: list[int]) -> None:
    sizes = block_size(pd.Series(counts))
    for count, size in zip(counts, sizes, strict=True):
        assert count <= size < 2 * count and size & (size - 1) == 0
        assert block_size(count) == size
    assert (block_size(np.array(counts)) == sizes.to_numpy()).all()


def test_no_gpus_are_no_block() -> None:
    with pytest.raises(InputError, match="0 GPUs are no block"):
        block_size(0)
