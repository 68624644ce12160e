"""The model store: versions whole or absent, and a champion that always loads."""

import errno
import hashlib
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegrid.errors import InputError
from tidegrid.models import Bundle, Lineage, ModelStore, Retention, VersionWarning, durable, journal, manifest

AT = "2026-03-02T00:00:00+00:00"


def bundle(value: float = 1.0, name: str = "training") -> Bundle:
    return Bundle(
        name, {"a": 1}, {"level": value}, {"w": np.arange(5) * value}, {"lgb q0.5": f"tree {value}"}
    )


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models", lock_timeout=0.5)


def saved(store: ModelStore, *values: float) -> list[str]:
    """Save and promote one version a value."""
    out = []
    for value in values:
        out.append(store.save(bundle(value), created=AT).id)
        store.promote("training", reason="test", at=AT)
    return out


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


class TestSaveAndLoad:
    def test_what_was_saved_loads(self, store: ModelStore) -> None:
        version = store.save(bundle(2.5), created=AT)
        loaded = store.load("training", version.id)
        assert (
            loaded.params == {"a": 1}
            and loaded.state == {"level": 2.5}
            and loaded.texts == {"lgb q0.5": "tree 2.5"}
        )
        assert loaded.arrays["w"].tolist() == [0, 2.5, 5, 7.5, 10]

    def test_a_version_tells_its_lineage(self, store: ModelStore) -> None:
        (first,) = saved(store, 1.0)
        lineage = Lineage(
            features=[{"name": "gpus", "dtype": "int", "unit": "GPUs"}],
            window=("2026-01-01T00:00:00Z", "2026-03-01T01:00:00+01:00"),
            history_sha256="ab" * 32,
            rows=12,
            metrics={"pinball": 0.25},
        )
        body = store.save(bundle(2.0), created=AT, lineage=lineage).manifest
        assert body["schema"] == 1 and body["parent"] == first and body["rows"] == 12
        assert body["window"] == ["2026-01-01T00:00:00+00:00", "2026-03-01T00:00:00+00:00"]
        assert body["metrics"] == {"pinball": 0.25} and body["history_sha256"] == "ab" * 32
        assert set(body["libraries"]) >= {"python", "numpy", "pandas", "lightgbm"}
        assert set(body["files"]) == {"bundle.json", "arrays.npz", "text-000-lgb-q0.5.txt"}
        assert body["created"] == AT and body["code"]

    def test_the_same_steps_write_the_same_bytes(self, tmp_path: Path) -> None:
        for name in ("one", "two"):
            saved(ModelStore(tmp_path / name), 1.0, 2.0)
        assert tree(tmp_path / "one") == tree(tmp_path / "two")

    def test_a_save_is_the_challenger_and_not_the_champion(self, store: ModelStore) -> None:
        version = store.save(bundle(), created=AT)
        assert version.aliases == ("challenger",) and store.champion("training") is None
        with pytest.raises(InputError, match="there is no champion"):
            store.load("training")

    def test_a_version_is_found_by_the_beginning_of_its_id(self, store: ModelStore) -> None:
        one, two = saved(store, 1.0, 2.0)
        assert store.show("training", one[:8]).id == one and store.show("training", "2").id == two
        for bad in ("000", "", "7", "champ"):
            with pytest.raises(InputError, match=r"ambiguous|no version"):
                store.show("training", bad)

    @pytest.mark.parametrize("name", ["../x", "", "A", "a/b", ".x", "a" * 80])
    def test_a_name_that_is_a_path_is_refused(self, store: ModelStore, name: str) -> None:
        with pytest.raises(InputError, match="cannot be an estimator's name"):
            store.save(bundle(name=name), created=AT)
        assert not store.root.exists()

    @pytest.mark.parametrize("at", ["2026-03-02T00:00:00", "yesterday", None])
    def test_an_instant_without_zone_is_refused(self, store: ModelStore, at: Any) -> None:
        with pytest.raises(InputError, match="created"):
            store.save(bundle(), created=at)

    def test_an_empty_or_absent_store_says_so(self, store: ModelStore) -> None:
        assert store.names() == () and store.list() == () and store.verify() == ()
        with pytest.raises(InputError, match="no such estimator"):
            store.load("training")
        assert not store.root.exists()


class TestPromotion:
    def test_promote_and_rollback_walk_the_champions(self, store: ModelStore) -> None:
        one, two, three = saved(store, 1.0, 2.0, 3.0)
        assert store.champion("training") == three and store.ancestors("training") == (one, two)
        assert store.rollback("training", reason="worse", at=AT).id == two
        assert store.load("training").state["level"] == 2.0
        assert store.rollback("training", reason="worse still", at=AT).id == one
        with pytest.raises(InputError, match="cannot go back"):
            store.rollback("training", reason="further", at=AT)
        assert store.champion("training") == one

    def test_every_decision_is_logged_with_its_reason(self, store: ModelStore) -> None:
        one, two = saved(store, 1.0, 2.0)
        store.rollback("training", reason="too wide", at=AT)
        store.reject("training", two, reason="band covers 50 %", at=AT)
        log = [(e.action, e.version, e.reason) for e in store.log("training")]
        assert log == [
            ("save", one, ""),
            ("promote", one, "test"),
            ("save", two, ""),
            ("promote", two, "test"),
            ("rollback", one, "too wide"),
            ("reject", two, "band covers 50 %"),
        ]
        assert [e.seq for e in store.log("training")] == [1, 2, 3, 4, 5, 6]

    def test_a_decision_needs_a_reason(self, store: ModelStore) -> None:
        store.save(bundle(), created=AT)
        with pytest.raises(InputError, match="reason"):
            store.promote("training", reason=" ", at=AT)

    def test_promoting_the_champion_again_changes_nothing(self, store: ModelStore) -> None:
        (one,) = saved(store, 1.0)
        before = tree(store.root)
        store.promote("training", one, reason="again", at=AT)
        assert tree(store.root) == before

    def test_a_decision_against_a_champion_that_has_gone_is_refused(self, store: ModelStore) -> None:
        """Two trainers compared with the same champion: only the first one's decision holds."""
        (one,) = saved(store, 1.0)
        a = store.save(bundle(2.0), created=AT)
        b = store.save(bundle(3.0), created=AT)
        store.promote("training", a.id, reason="first", at=AT, over=one)
        with pytest.raises(InputError, match="champion has become"):
            store.promote("training", b.id, reason="second", at=AT, over=one)
        assert store.champion("training") == a.id

    def test_rollback_passes_over_a_damaged_ancestor_and_says_so(self, store: ModelStore) -> None:
        one, two, _ = saved(store, 1.0, 2.0, 3.0)
        (store.root / "training" / two / "bundle.json").write_bytes(b"x")
        assert store.rollback("training", reason="worse", at=AT).id == one
        assert two in store.log("training")[-1].reason

    def test_a_damaged_version_is_not_promoted(self, store: ModelStore) -> None:
        saved(store, 1.0)
        two = store.save(bundle(2.0), created=AT)
        (two.folder / "arrays.npz").unlink()
        with pytest.raises(InputError, match=r"arrays\.npz: is missing"):
            store.promote("training", reason="better", at=AT)
        assert store.load("training").state["level"] == 1.0


class TestDamage:
    @given(st.data())
    def test_any_flipped_byte_of_any_file_is_refused_naming_the_file(self, data: st.DataObject) -> None:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            store = ModelStore(folder)
            version = store.save(bundle(1.5), created=AT)
            file = data.draw(st.sampled_from(sorted(p.name for p in version.folder.iterdir())))
            raw = bytearray((version.folder / file).read_bytes())
            at = data.draw(st.integers(0, len(raw) - 1))
            raw[at] ^= 1 << data.draw(st.integers(0, 7))
            (version.folder / file).write_bytes(raw)
            with pytest.raises(InputError) as caught:
                store.load("training", version.id)
            assert file in str(caught.value) and "\n" not in str(caught.value)
            assert [problem.file for problem in store.verify()] == [file]

    def test_a_file_that_does_not_belong_is_reported(self, store: ModelStore) -> None:
        version = store.save(bundle(), created=AT)
        (version.folder / "evil.pkl").write_bytes(b"x")
        assert [str(p) for p in store.verify("training")] == [
            f"training/{version.id}/evil.pkl: does not belong here"
        ]

    def test_a_link_in_place_of_a_file_is_refused(self, store: ModelStore, tmp_path: Path) -> None:
        version = store.save(bundle(), created=AT)
        file = version.folder / "bundle.json"
        (tmp_path / "elsewhere").write_bytes(file.read_bytes())
        file.unlink()
        file.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(InputError, match="not a regular file"):
            store.load("training", version.id)

    @pytest.mark.parametrize("evil", ["../../secret", "/etc/passwd", "a/b", ".hidden", "manifest.json"])
    def test_a_manifest_cannot_name_a_file_outside_its_folder(self, store: ModelStore, evil: str) -> None:
        version = store.save(bundle(), created=AT)
        body = dict(version.manifest)
        body["files"] = {**body["files"], evil: {"sha256": "0" * 64, "bytes": 1}}
        (version.folder / "manifest.json").write_bytes(manifest.sealed(body))
        with pytest.raises(InputError, match="names the file"):
            store.load("training", version.id)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("files", {}), ("files", []), ("files", {"bundle.json": {"sha256": "0" * 64, "bytes": True}}),
            ("files", {"bundle.json": {"sha256": 7, "bytes": 1}}),
            ("files", {"bundle.json": {"sha256": "0" * 64, "bytes": 1 << 40}}),
            ("window", "yesterday"), ("window", ["yesterday", "today"]), ("window", [1, 2]), ("created", 5),
            ("libraries", ["numpy"]), ("libraries", {"numpy": 2}), ("metrics", 3.0), ("features", {"a": 1}),
            ("features", ["gpus"]), ("rows", "many"), ("rows", -1), ("parent", 4), ("code", None),
            ("version", 3), ("estimator", ["training"]), ("content_sha256", "f" * 64),
        ],
    )  # fmt: skip
    def test_a_manifest_with_a_field_of_another_type_is_refused_by_name_and_the_rest_is_listed(
        self, store: ModelStore, field: str, value: object
    ) -> None:
        saved(store, 1.0)
        version = store.save(bundle(2.0), created=AT)
        (version.folder / "manifest.json").write_bytes(manifest.sealed({**version.manifest, field: value}))
        with pytest.raises(InputError, match=r"manifest\.json.*"):
            store.load("training", version.id)
        good, bad = store.list("training")
        assert not good.problem and bad.problem and field.split("_")[0] in bad.problem
        assert [problem.file for problem in store.verify()] == ["manifest.json"]

    def test_a_pipe_in_place_of_a_file_is_never_opened(self, store: ModelStore) -> None:
        version = store.save(bundle(), created=AT)
        for name in ("manifest.json", "../log.jsonl", "../aliases.json"):
            path = version.folder / name
            path.unlink()
            os.mkfifo(path)
        with pytest.raises(InputError, match="not a regular file"):
            store.champion("training")
        with pytest.raises(InputError, match="not a regular file"):
            manifest.read(version.folder)

    def test_a_version_moved_to_another_estimator_is_refused(self, store: ModelStore) -> None:
        version = store.save(bundle(), created=AT)
        other = store.root / "quantization" / version.id
        other.parent.mkdir()
        version.folder.rename(other)
        with pytest.raises(InputError, match="belongs to training"):
            store.load("quantization", version.id)

    def test_a_version_without_a_readable_manifest_is_listed_with_its_problem(
        self, store: ModelStore
    ) -> None:
        version = store.save(bundle(), created=AT)
        (version.folder / "manifest.json").write_text("{}")
        (listed,) = store.list("training")
        assert "manifest.json" in listed.problem and listed.manifest == {}


class TestJournal:
    @pytest.mark.parametrize(
        ("field", "value"),
        [("seq", "2"), ("seq", -1), ("seq", 1e300), ("champion", "../../x"), ("ancestors", "abc"),
         ("ancestors", [3]), ("reason", None), ("last", "many"), ("at", 5), ("action", {})],
    )  # fmt: skip
    def test_a_line_with_a_field_of_another_type_is_told_and_ignored(
        self, store: ModelStore, field: str, value: object
    ) -> None:
        (one,) = saved(store, 1.0)
        log = store.root / "training" / "log.jsonl"
        last = json.loads(log.read_bytes().splitlines()[-1])
        body = {**{k: v for k, v in last.items() if k != "sum"}, "seq": 9, field: value}
        body["sum"] = hashlib.sha256(
            json.dumps(body, sort_keys=True, ensure_ascii=False).encode()
        ).hexdigest()[:16]
        with log.open("ab") as handle:
            handle.write(json.dumps(body, sort_keys=True, ensure_ascii=False).encode() + b"\n")
        assert store.champion("training") == one
        assert any("line 3" in problem.problem for problem in store.verify())

    @pytest.mark.parametrize("lost", ["log.jsonl", "aliases.json"])
    def test_either_file_alone_is_enough_to_find_the_champion(self, store: ModelStore, lost: str) -> None:
        one, two = saved(store, 1.0, 2.0)
        path = store.root / "training" / lost
        for damage in (lambda: path.write_bytes(b"\x00junk\n"), path.unlink):
            damage()
            assert store.champion("training") == two and store.ancestors("training") == (one,)
        three = store.save(bundle(3.0), created=AT)
        assert store.champion("training") == two and store.challenger("training") == three.id

    def test_both_damaged_is_refused_by_name(self, store: ModelStore) -> None:
        saved(store, 1.0)
        for name in ("log.jsonl", "aliases.json"):
            (store.root / "training" / name).write_bytes(b"junk\n")
        with pytest.raises(InputError, match=r"log\.jsonl: is damaged"):
            store.load("training")
        assert len(store.verify()) == 2

    def test_a_line_cut_short_decides_nothing_and_is_removed_by_the_next(self, store: ModelStore) -> None:
        """A kill between the first and the last byte of a promotion leaves the champion before it."""
        one, _ = saved(store, 1.0, 2.0)
        folder = store.root / "training"
        whole = (folder / "log.jsonl").read_bytes()
        aliases_before = (folder / "aliases.json").read_bytes()
        entry = store.log("training")[-1]
        for cut in (1, 40, len(whole)):
            (folder / "log.jsonl").write_bytes(whole[:-cut])
            (folder / "aliases.json").write_bytes(aliases_before)
            assert store.champion("training") == entry.champion
        lines = whole.splitlines(keepends=True)
        (folder / "log.jsonl").write_bytes(b"".join(lines[:-1]) + lines[-1][:-1])
        (folder / "aliases.json").write_bytes(lines[-2])
        assert store.champion("training") == one
        store.save(bundle(9.0), created=AT)
        assert store.champion("training") == one and not journal.problems(folder)

    def test_a_first_line_cut_short_is_no_damage(self, store: ModelStore) -> None:
        (store.root / "training").mkdir(parents=True)
        (store.root / "training" / "log.jsonl").write_bytes(b'{"action": "sa')
        assert store.champion("training") is None
        saved(store, 1.0)
        assert store.load("training").state["level"] == 1.0 and not store.verify()

    def test_a_kill_between_log_and_aliases_leaves_the_decision_made(
        self, store: ModelStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        saved(store, 1.0)
        two = store.save(bundle(2.0), created=AT)

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(journal, "replace_file", killed)
        with pytest.raises(KeyboardInterrupt):
            store.promote("training", reason="better", at=AT)
        assert store.champion("training") == two.id
        monkeypatch.undo()
        assert store.champion("training") == two.id and not store.verify()

    def test_flipped_bits_in_the_log_are_reported(self, store: ModelStore) -> None:
        saved(store, 1.0, 2.0)
        path = store.root / "training" / "log.jsonl"
        raw = bytearray(path.read_bytes())
        raw[10] ^= 4
        path.write_bytes(raw)
        assert [p.file for p in store.verify()] == ["log.jsonl"]
        assert len(store.log("training")) == 3


class TestInterruptions:
    def test_a_save_that_dies_before_its_rename_is_never_listed(
        self, store: ModelStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (one,) = saved(store, 1.0)
        real, calls = durable.write_file, []

        def killed(path: Path, data: bytes) -> None:
            calls.append(path)
            if len(calls) == 2:
                raise KeyboardInterrupt
            real(path, data)

        monkeypatch.setattr(durable, "write_file", killed)
        with pytest.raises(KeyboardInterrupt):
            store.save(bundle(2.0), created=AT)
        monkeypatch.undo()
        assert [v.id for v in store.list()] == [one] and not store.verify()
        assert any(p.name.startswith(".part-") for p in store.root.iterdir())
        store.save(bundle(3.0), created=AT)
        assert not any(p.name.startswith(".part-") for p in store.root.iterdir())

    def test_a_deletion_that_dies_halfway_is_never_listed(
        self, store: ModelStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        saved(store, 1.0, 2.0, 3.0)

        def killed(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(durable.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            store.prune("training", Retention(ancestors=0, challengers=0), at=AT)
        monkeypatch.undo()
        assert not store.verify() and store.load("training").state["level"] == 3.0
        store.prune("training", Retention(ancestors=0, challengers=0), at=AT)
        assert [v.manifest["version"] for v in store.list()] == [store.champion("training")]
        assert not any(p.name.startswith(".old-") for p in store.root.iterdir())

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
    @pytest.mark.parametrize("at_file", [0, 1, 2, 3])
    def test_a_full_disk_leaves_everything_as_it_was(
        self, store: ModelStore, monkeypatch: pytest.MonkeyPatch, code: int, at_file: int
    ) -> None:
        saved(store, 1.0)
        before = tree(store.root)
        real, calls = durable.write_file, []

        def full(path: Path, data: bytes) -> None:
            if len(calls) == at_file:
                path.write_bytes(data[: len(data) // 2])
                raise OSError(code, os.strerror(code))
            calls.append(path)
            real(path, data)

        monkeypatch.setattr(durable, "write_file", full)
        with pytest.raises(InputError, match="cannot be written"):
            store.save(bundle(2.0), created=AT)
        assert tree(store.root) == before

    def test_a_full_disk_while_the_log_is_written_leaves_the_champion(self, store: ModelStore) -> None:
        """The limit on a file's size strikes inside the log's line, as a full disk would."""
        (one,) = saved(store, 1.0)
        two = store.save(bundle(2.0), created=AT)
        log = store.root / "training" / "log.jsonl"
        whole = log.read_bytes()
        script = (
            "import resource, signal, sys; from tidegrid.models import ModelStore\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            f"resource.setrlimit(resource.RLIMIT_FSIZE, ({len(whole) + 50}, {len(whole) + 50}))\n"
            "from tidegrid.errors import InputError\n"
            "try:\n"
            f"    ModelStore({str(store.root)!r}).promote('training', reason='better', at={AT!r})\n"
            "except InputError as error:\n"
            "    print(error); sys.exit(2)\n"
        )
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert run.returncode == 2, run.stderr
        assert "free some space" in run.stdout
        assert log.read_bytes() == whole and store.champion("training") == one
        assert store.promote("training", reason="better", at=AT).id == two.id

    def test_a_read_only_store_still_loads_its_champion(self, store: ModelStore) -> None:
        """As another user where the tests run as root, whom permissions do not bind."""
        saved(store, 1.0)
        root = os.getuid() == 0
        parents = [p for p in store.root.parents if root and p != Path("/tmp") and p.stat().st_uid == 0]
        for folder in (store.root, store.root / "training"):
            folder.chmod(0o555)
        modes = [(p, p.stat().st_mode) for p in parents]
        try:
            for parent in parents:
                parent.chmod(parent.stat().st_mode | 0o005)
            script = (
                "import os, sys\n"
                "from tidegrid.models import Bundle, ModelStore\n"
                "from tidegrid.errors import InputError\n"
                f"ModelStore({str(store.root)!r}).load('training')\n"
                + ("os.setgid(65534); os.setuid(65534)\n" if root else "")
                + f"store = ModelStore({str(store.root)!r})\n"
                "print(store.load('training').state['level'], len(store.list()), len(store.verify()))\n"
                "try:\n"
                f"    store.save(Bundle('training'), created={AT!r})\n"
                "except InputError as error:\n"
                "    print(error)\n"
            )
            run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        finally:
            for parent, mode in modes:
                parent.chmod(mode)
            for folder in (store.root, store.root / "training"):
                folder.chmod(0o755)
        lines = run.stdout.splitlines()
        assert lines[:1] == ["1.0 1 0"], run.stderr
        assert "cannot be written" in lines[1]

    def test_two_writers_take_turns(self, store: ModelStore) -> None:
        """Four processes save and promote ten times each; every version and decision is there."""
        script = (
            "import sys\n"
            "from tidegrid.models import Bundle, ModelStore\n"
            f"store = ModelStore({str(store.root)!r})\n"
            "for i in range(10):\n"
            f"    v = store.save(Bundle('training', {{}}, {{'n': sys.argv[1] + str(i)}}), created={AT!r})\n"
            f"    store.promote('training', v.id, reason='turn', at={AT!r})\n"
        )
        runs = [subprocess.Popen([sys.executable, "-c", script, str(n)]) for n in range(4)]
        assert [run.wait(120) for run in runs] == [0, 0, 0, 0]
        assert not store.verify()
        versions = store.list("training")
        assert [v.sequence for v in versions] == list(range(1, 41))
        log = store.log("training")
        assert [e.seq for e in log] == list(range(1, 81))
        assert {e.version for e in log if e.action == "promote"} == {v.id for v in versions}

    def test_a_held_lock_is_waited_for_and_then_named(self, store: ModelStore) -> None:
        saved(store, 1.0)
        with (
            durable.locked(store.root, 1.0),
            pytest.raises(InputError, match="another process has been writing"),
        ):
            store.save(bundle(2.0), created=AT)
        store.save(bundle(2.0), created=AT)

    def test_where_the_system_has_no_lock_a_file_stands_in(
        self, store: ModelStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(durable, "fcntl", None)
        saved(store, 1.0)
        assert not (store.root / ".lock-owner").exists()
        with durable.locked(store.root, 1.0), pytest.raises(InputError, match="another process"):
            store.save(bundle(2.0), created=AT)
        import socket

        done = subprocess.Popen([sys.executable, "-c", ""])
        done.wait()
        (store.root / ".lock-owner").write_text(f"{done.pid} {socket.gethostname()}")
        store.save(bundle(2.0), created=AT)
        (store.root / ".lock-owner").write_text("1 another-host")
        with pytest.raises(InputError, match="another process"):
            store.save(bundle(3.0), created=AT)


class TestVersions:
    def test_other_library_versions_warn_or_refuse_by_name(
        self, store: ModelStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        saved(store, 1.0)
        real = manifest.version
        monkeypatch.setattr(manifest, "version", lambda name: "99.1" if name == "lightgbm" else real(name))
        with pytest.warns(VersionWarning, match=r"lightgbm .* \(here 99\.1\)"):
            store.load("training")
        with pytest.raises(InputError, match="lightgbm"):
            store.load("training", versions="refuse")
        assert store.load("training", versions="ignore").state["level"] == 1.0

    def rewritten(self, store: ModelStore, **changes: Any) -> None:
        (version,) = store.list("training")
        (version.folder / "manifest.json").write_bytes(manifest.sealed({**version.manifest, **changes}))

    @pytest.mark.parametrize(
        ("schema", "says"), [(2, "upgrade tidegrid"), (0, "no longer reads"), (None, "no schema")]
    )
    def test_another_schema_is_refused_by_name(self, store: ModelStore, schema: Any, says: str) -> None:
        saved(store, 1.0)
        self.rewritten(store, schema=schema)
        with pytest.raises(InputError, match=says) as caught:
            store.load("training")
        assert "manifest.json" in str(caught.value)

    def test_an_older_schema_is_lifted_where_a_step_is_known(
        self, store: ModelStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        saved(store, 1.0)
        monkeypatch.setitem(manifest.MIGRATIONS, 0, lambda body: {**body, "rows": 7})
        self.rewritten(store, schema=0)
        assert store.show("training").manifest["rows"] == 7 and store.show("training").manifest["schema"] == 1
        assert store.load("training").state["level"] == 1.0


class TestRetention:
    def test_the_rule_keeps_champion_ancestors_and_latest_challengers(self, store: ModelStore) -> None:
        champions = saved(store, 1.0, 2.0, 3.0, 4.0)
        others = [store.save(bundle(10.0 + i), created=AT).id for i in range(4)]
        gone = store.prune("training", Retention(ancestors=1, challengers=2), at=AT)
        assert set(gone) == {*champions[:2], others[0]}
        left = {version.id for version in store.list("training")}
        assert left == {*champions[2:], *others[1:]}
        assert store.ancestors("training") == (champions[2],)
        assert store.rollback("training", reason="back", at=AT).id == champions[2]

    def test_a_disk_budget_never_takes_the_champion_or_the_challenger(self, store: ModelStore) -> None:
        champions = saved(store, 1.0, 2.0, 3.0)
        challenger = store.save(bundle(9.0), created=AT).id
        store.prune("training", Retention(max_bytes=0), at=AT)
        assert {version.id for version in store.list()} == {champions[-1], challenger}
        assert store.load("training").state["level"] == 3.0 and not store.verify()

    def test_a_budget_takes_the_oldest_first(self, store: ModelStore) -> None:
        champions = saved(store, 1.0, 2.0, 3.0, 4.0)
        each = max(version.size for version in store.list())
        store.prune("training", Retention(ancestors=9, max_bytes=3 * each), at=AT)
        assert [version.id for version in store.list()] == champions[1:]

    def test_a_number_is_never_used_twice(self, store: ModelStore) -> None:
        saved(store, 1.0)
        for value in (2.0, 3.0):
            store.save(bundle(value), created=AT)
        store.prune("training", Retention(challengers=0), at=AT)
        store.reject("training", reason="worse", at=AT)
        store.prune("training", Retention(challengers=0), at=AT)
        assert store.save(bundle(4.0), created=AT).sequence == 4

    def test_nothing_to_prune_writes_nothing(self, store: ModelStore) -> None:
        saved(store, 1.0)
        before = tree(store.root)
        assert store.prune("training", at=AT) == () and tree(store.root) == before


def test_a_loaded_store_in_a_fresh_process_is_the_same(store: ModelStore) -> None:
    saved(store, 1.25)
    script = (
        "from tidegrid.models import ModelStore; from tidegrid.models.codec import digest\n"
        f"print(digest(ModelStore({str(store.root)!r}).load('training')))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == store.show("training").manifest["content_sha256"]


def test_nothing_in_the_store_is_a_pickle(store: ModelStore) -> None:
    saved(store, 1.0, 2.0)
    assert {p.suffix for p in store.root.rglob("*") if p.is_file()} <= {".json", ".jsonl", ".npz", ".txt", ""}
    assert json.loads((store.root / "training" / "aliases.json").read_text())["seq"] == 4


def test_resource_limits_are_there() -> None:
    """The full-disk test rests on the limit of a file's size."""
    assert hasattr(resource, "RLIMIT_FSIZE")
