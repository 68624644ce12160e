"""Sixty-odd jobs of every kind that users submit: types, nodes, arrays, order, limits, names, features, partitions."""

import json
from dataclasses import dataclass, field

from cluster import Cluster

NAMES = (
    "lr=0.1,bs=32",
    "a|b",
    'he said "hi"',
    "it's",
    "обучение-ü",
    "nan",
    "  spaced  ",
    "line1\nline2",
    "$(id)",
    "<b>",
)
FEATURES = json.dumps({"variant": "lora_sft", "model_params_b": 8, "tokens_per_epoch_m": 2})


@dataclass
class Submitted:
    """The ids of jobs, by what they are; those of an array as tasks."""

    ids: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, int] = field(default_factory=dict)

    def all(self) -> list[str]:
        """Every job and task."""
        out = []
        for what, name in self.ids.items():
            tasks = self.arrays.get(what)
            out += [name] if tasks is None else [f"{name}_{k}" for k in range(tasks)]
        return out


def submit(cluster: Cluster) -> Submitted:
    """Submit them; all can end within two minutes or so."""
    out = Submitted()

    def add(what: str, user: str, *words: str, run: str = "sleep 3", tasks: int | None = None) -> str:
        more = () if tasks is None else ("-a", words[0])
        out.ids[what] = cluster.submit(user, "-J", what, *more, *words[1 if tasks else 0 :], run=run)
        if tasks is not None:
            out.arrays[what] = tasks
        return out.ids[what]

    for k in range(4):
        add(f"wide-{k}", "user1", "-t", "4", "--gres=gpu:a100:8", run=f"sleep {6 - k}")
    for k in range(6):
        add(f"pair-{k}", "user2", "-t", "3", "--gpus=a100:2", run=f"sleep {2 + k}")
    for k in range(4):
        add(f"any-{k}", "user3", "-t", "2", "--gpus=1", run="sleep 3")
    for k in range(3):
        add(f"v100-{k}", "user3", "-t", "3", "--gres=gpu:v100:4", run="sleep 4")
    for k in range(2):
        add(f"four-{k}", "user4", "-t", "3", "--gpus=a100:4", run="sleep 5")
    add("three", "user4", "-t", "3", "--gpus=a100:3", run="sleep 4")
    add("two-nodes", "user4", "-t", "3", "-N2", "--gpus-per-node=a100:4", run="sleep 5")
    add("two-whole-nodes", "user4", "-t", "3", "-N2", "--gpus-per-node=a100:8", run="sleep 4")
    add("tasks", "user2", "-t", "3", "-n4", "--gpus-per-task=1", run="sleep 3")
    add("exclusive", "user3", "-t", "3", "--exclusive", "--gres=gpu:1", run="sleep 3")
    add("array", "user5", "0-5%2", "-t", "3", "--gpus=a100:1", run="sleep 2", tasks=6)
    add("array-v100", "user4", "0-3", "-t", "3", "--gres=gpu:v100:1", run="sleep 3", tasks=4)
    first = add("prep", "user5", "-t", "3", "--gpus=a100:1", run="sleep 3")
    add("after", "user5", "-t", "3", "-d", f"afterok:{first}", "--gpus=a100:4", run="sleep 2")
    for k in range(2):
        add(
            f"singleton-{k}",
            "user2",
            "-J",
            "sing",
            "-t",
            "3",
            "-d",
            "singleton",
            "--gpus=a100:1",
            run="sleep 2",
        )
    add("fails", "user1", "-A", "vision", "-t", "3", "--gpus=1", run="sleep 2; exit 3")
    add("at once", "user1", "-t", "1", "--gpus=a100:1", run="true")
    add("either", "user5", "-C", "a100|v100", "-t", "3", "--gpus=1")
    add("feature", "user5", "-C", "v100", "-t", "3", "--gpus=1")
    add("pinned", "user5", "-w", "a2", "-t", "3", "--gpus=2")
    add("not there", "user5", "-x", "a1,a2", "-t", "3", "--gpus=a100:1")
    add("both partitions", "user5", "-p", "gpu,long", "-t", "3", "--gpus=a100:1")
    add("no limit", "user4", "-p", "long", "-t", "UNLIMITED", "--gpus=v100:1", run="sleep 4")
    add("default limit", "user4", "--gpus=v100:1")
    add("cpus", "user5", "-p", "cpu")
    add("many cpus", "user1", "-t", "3", "-c", "30", "--gpus=a100:1", run="sleep 4")
    add("memory", "user1", "-t", "3", "--mem=150000", "--gpus=a100:1", run="sleep 4")
    add("high", "user3", "-q", "high", "-t", "3", "--gpus=a100:1", f"--comment={FEATURES}")
    for k in range(3):
        add(f"capped-{k}", "user3", "-q", "capped", "-t", "3", "--gpus=a100:2", run="sleep 3")
    add("polite", "user2", "--nice=50", "-t", "3", "--gpus=a100:1")
    add("soon", "user3", "-b", "now+20seconds", "-t", "3", "--gpus=a100:1")
    add("deadline", "user3", "-t", "1", "--deadline=now+20minutes", "--gpus=a100:1")
    for name in NAMES:
        add(name, "user2", "-t", "3", "--gpus=a100:1", f"--comment={name}", run="sleep 2")
    assert len(out.all()) >= 60
    return out
