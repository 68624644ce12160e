"""A turn on a made-up Slurm of 5,000 waiting and 2,000 running jobs: read, plan, and the commands of a dry run.

``python benchmarks/slurm_snapshot.py`` makes the output of Slurm's commands in the dialect of 24.11 (560 nodes, two
GPU types, 20,000 past attempts), and turns on it twice in a process of its own, as ``tidegrid slurm run`` does: the
first turn also fits the estimators, the second finds them. It prints CPU seconds and peak memory of each.
"""

import argparse
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NOW = 1_796_083_200  # 2026-12-01T00:00Z
TYPES = {"a100": (420, 8), "v100": (140, 4)}
USERS = [f"u{k}" for k in range(200)]
NAMES = [
    "sft",
    "eval",
    "lora",
    "a|b",
    "$(touch /tmp/owned)",
    "<script>alert(1)</script>",
    "line1\nline2",
    "it's",
]
LIMITS = (30, 60, 240, 720, 1440)
ADMIN_COMMENT = "tidegrid:gate"


def number(value: float | None) -> dict[str, Any]:
    return {"set": value is not None, "infinite": False, "number": value or 0}


class Made:
    """The cluster: its nodes, what they hold, and jobs."""

    def __init__(self, waiting: int, running: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.nodes = {
            f"{kind[0]}{k:03d}": (kind, size) for kind, (n, size) in TYPES.items() for k in range(n)
        }
        self.free = {name: list(range(size)) for name, (_, size) in self.nodes.items()}
        self.jobs: list[dict[str, Any]] = []
        while len(self.jobs) < running and self._run(len(self.jobs) + 1000):
            pass
        self.running = len(self.jobs)
        while len(self.jobs) - self.running < waiting:
            self.jobs.append(self._wait(100_000 + len(self.jobs)))

    def job(self, ident: int, kind: str, gpus: int, wide: int, **more: Any) -> dict[str, Any]:
        rng, each = self.rng, gpus // wide
        user = rng.choice(USERS)
        tres = f"cpu={4 * gpus},mem={16000 * gpus}M,node={wide},gres/gpu={gpus},gres/gpu:{kind}={gpus}"
        return {
            "job_id": ident, "state_reason": "Priority", "name": f"{rng.choice(NAMES)}-{rng.randrange(40)}",
            "user_name": user, "account": f"acct{int(user[1:]) % 12}", "qos": rng.choice(["normal", "normal", "low"]),
            "partition": rng.choice(["gpu", "gpu", "gpu,long"]), "time_limit": number(rng.choice(LIMITS)),
            "tres_req_str": tres, "tres_per_node": f"gres/gpu:{kind}:{each}" if wide > 1 else "",
            "node_count": number(wide), "cpus": number(4 * gpus), "memory_per_cpu": number(4000),
            "memory_per_node": number(None), "features": rng.choice(["", "", "", "nvme", "nvme&ib"]),
            "priority": number(rng.randrange(1000, 20_000)), "nice": 0, "array_job_id": number(0),
            "array_task_id": number(None), "array_task_string": "", "gres_detail": [], "nodes": "", "dependency": "",
            "required_nodes": "", "excluded_nodes": "", "deadline": number(0), "hold": False, "batch_flag": True,
            "comment": rng.choice(["", "", '{"variant": "lora_sft", "model_params_b": 8}', "<b>; rm -rf /"]),
            "admin_comment": "", "shared": [], "eligible_time": number(NOW - 1000), "start_time": number(0),
            "submit_time": number(NOW - rng.randrange(60, 400_000)), **more,
        }  # fmt: skip

    def _run(self, ident: int) -> bool:
        kind = self.rng.choice(["a100", "a100", "a100", "v100"])
        if not any(self.free[name] for name, (of, _) in self.nodes.items() if of == kind):
            kind = "a100" if kind == "v100" else "v100"
        gpus = self.rng.choice([1, 1, 1, 1, 2, 2] if kind == "v100" else [1, 1, 1, 1, 2, 2, 4])
        room = [name for name, (of, _) in self.nodes.items() if of == kind and len(self.free[name]) >= gpus]
        if not room:
            gpus, room = 1, [name for name, (of, _) in self.nodes.items() if of == kind and self.free[name]]
        if not room:
            return False
        node = self.rng.choice(room)
        ids, self.free[node] = self.free[node][:gpus], self.free[node][gpus:]
        held = f"gpu:{kind}:{gpus}(IDX:{','.join(map(str, ids))})"
        begun = NOW - self.rng.randrange(60, 40_000)
        job = self.job(
            ident, kind, gpus, 1, job_state=["RUNNING"], nodes=node, gres_detail=[held], start_time=number(begun),
            submit_time=number(begun - self.rng.randrange(1, 90_000)),
        )  # fmt: skip
        self.jobs.append(job | {"tres_alloc_str": job["tres_req_str"]})
        return True

    def _wait(self, ident: int) -> dict[str, Any]:
        rng = self.rng
        kind = rng.choice(["a100", "a100", "v100"])
        gpus = rng.choice([1, 1, 2, 3, 4] if kind == "v100" else [1, 1, 2, 4, 8, 8, 16])
        more: dict[str, Any] = {
            "job_state": ["PENDING"],
            "tres_alloc_str": "",
            "admin_comment": ADMIN_COMMENT,
        }
        if rng.random() < 0.02:
            more["dependency"] = f"afterok:{1000 + rng.randrange(self.running)}(unfulfilled)"
        if rng.random() < 0.02:
            more |= {
                "array_job_id": number(ident), "array_task_string": "0-9%2", "array_max_tasks": number(2),
            }  # fmt: skip
        return self.job(ident, kind, gpus, max(1, gpus // 8), **more)

    def write(self, folder: Path, history: int) -> None:
        folder.mkdir(parents=True)
        (folder / "squeue.json").write_text(json.dumps({"jobs": self.jobs}))
        lines = []
        for name, (kind, size) in self.nodes.items():
            used = size - len(self.free[name])
            lines.append(
                f"NodeName={name} CPUAlloc={4 * used} CPUTot=128 ActiveFeatures={kind},nvme,ib Gres=gpu:{kind}:{size} "
                f"RealMemory=1000000 AllocMem={16000 * used} State=MIXED Partitions=gpu,long "
                f"AllocTRES=cpu={4 * used},gres/gpu={used}"
            )
        (folder / "nodes.txt").write_text("\n".join(lines) + "\n")
        (folder / "partitions.txt").write_text(
            "PartitionName=gpu Default=YES MaxTime=1-00:00:00 Nodes=a[000-419],v[000-139] State=UP\n"
            "PartitionName=long Default=NO MaxTime=UNLIMITED Nodes=a[000-419],v[000-139] State=UP\n"
        )
        (folder / "reservations.txt").write_text(
            "ReservationName=maint StartTime=2026-12-02T06:00:00 EndTime=2026-12-02T12:00:00 Nodes=a[000-019] "
            "Flags=MAINT,SPEC_NODES TRES=cpu=1 Users=root Accounts=(null)\n"
        )
        (folder / "qos.txt").write_text("Name|GrpTRES|MaxTRESPU|MaxTRESPA\nnormal|||\nlow||gres/gpu=64|\n")
        (folder / "associations.txt").write_text(
            "Account|User|GrpTRES|GrpJobs|MaxJobs\n"
            + "".join(f"acct{k}||gres/gpu={200 + 20 * k}||\n" for k in range(12))
        )
        self._accounting(folder / "sacct.txt", history)

    def _accounting(self, path: Path, history: int) -> None:
        from tidegrid.data.sacct import FIELDS

        rng, rows = self.rng, [FIELDS.replace(",", "|")]
        for k in range(history):
            user, limit = rng.choice(USERS), rng.choice(LIMITS)
            gpus, length = rng.choice([1, 1, 2, 4, 8]), max(30, int(60 * limit * rng.betavariate(1, 4)))
            end = NOW - rng.randrange(60, 50 * 86400)
            tres = f"cpu={4 * gpus},gres/gpu={gpus},gres/gpu:a100={gpus}"
            state = rng.choice(["COMPLETED"] * 8 + ["FAILED", "TIMEOUT"])
            rows.append(
                f"{k + 1}|{user}|acct{int(user[1:]) % 12}|normal|gpu|{state}|{end - length - 600}|{end - length}|{end}|"
                f"{length}|00:00:00|{limit}|1|{4 * gpus}|16G|{tres}|{tres}|a000||{rng.choice(NAMES[:3])}-{k % 40}"
            )
        path.write_text("\n".join(rows) + "\n")


def turns(folder: Path) -> None:
    """Turn twice on the saved output, as ``tidegrid slurm run`` does, and print what each took."""
    import pandas as pd

    from tidegrid.models import ModelStore
    from tidegrid.pipeline.control import Settings, tick
    from tidegrid.pipeline.rolling import StateStore
    from tidegrid.pipeline.worlds.slurm.commands import Saved, Slurm
    from tidegrid.pipeline.worlds.slurm.world import LOG, SlurmWorld

    site = folder / "site"
    state, models = StateStore(site / "state.db"), ModelStore(site / "models")
    started = time.process_time()
    for turn in range(2):
        began = time.process_time()
        world = SlurmWorld(site, Slurm(site / LOG, dry_run=True, run=Saved(folder / "saved")))
        how = Settings(candidates=world.site.planned_jobs)
        now = pd.Timestamp(f"2026-12-01T00:0{turn}:00Z")
        document = tick(state, world, now, how, models=models).document
        with (site / "told.jsonl").open("a") as out:
            out.write(json.dumps(document) + "\n")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        commands = sum(1 for _ in (site / LOG).open())
        print(
            f"turn {turn + 1}: {time.process_time() - began:.1f} CPU s, at most {peak:.0f} MiB; "
            f"{len(document['start'])} start, {len(document['waiting'])} wait, {commands} commands so far"
        )
    print(f"beside them, to start the process: {started:.1f} CPU s")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--waiting", type=int, default=5000)
    parser.add_argument("--running", type=int, default=2000)
    parser.add_argument("--history", type=int, default=20_000)
    parser.add_argument("--mode", default="start")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--turns-of", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.turns_of:
        turns(asked.turns_of)
        return
    folder = Path(tempfile.mkdtemp())
    try:
        made = Made(asked.waiting, asked.running, asked.seed)
        made.write(folder / "saved", asked.history)
        site = folder / "site"
        site.mkdir()
        (site / "slurm.json").write_text(json.dumps({"mode": asked.mode, "write_eta": True}))
        print(
            f"{len(made.jobs) - made.running} records wait, {made.running} jobs run on {len(made.nodes)} nodes"
        )
        (site / "models").mkdir()
        words = [sys.executable, __file__, "--turns-of", str(folder)]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        print(done.stdout, end="")
        *_, told = (json.loads(line) for line in (site / "told.jsonl").open())
        began_cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
        job = next(one["job"] for one in told["waiting"] if one["start"])
        for words in ([job], ["--gpus", "4", "--time", "4:00:00"]):
            subprocess.run(
                [sys.executable, "-m", "tidegrid", "eta", *words, "--state", str(site / "state.db")],
                check=True,
            )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = (after.ru_utime + after.ru_stime - began_cpu.ru_utime - began_cpu.ru_stime) / 2
        print(f"eta: {cpu:.2f} CPU s each; owned: {Path('/tmp/owned').exists()}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
