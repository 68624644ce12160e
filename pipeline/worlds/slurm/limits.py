"""Which limit of Slurm each job counts in, as the tenants of a cluster: a job has one, the tightest that binds it."""

from collections import Counter
from collections.abc import Mapping

from tidegrid.pipeline.worlds.slurm.entities import Limit, QueueJob, Snapshot

NONE = "no limit"
"""The tenant of a job that no limit binds."""


class Tenants:
    """Answers which limit a job counts in.

    Parameters
    ----------
    snapshot
        What Slurm says.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.limits = snapshot.limits
        self._partition_qos = {one.name: one.qos for one in snapshot.partitions if one.qos}
        self._known: dict[tuple[object, ...], tuple[Limit, ...]] = {}

    def of(self, job: QueueJob) -> str:
        """Return the name of the tightest limit that binds a job."""
        binding = self.binding(job)
        return binding[0].name(job) if binding else NONE

    def binding(self, job: QueueJob) -> tuple[Limit, ...]:
        """Return the limits that bind a job, the tightest first: of its QOS and its partitions', accounts, and user."""
        key = (job.qos, job.account, job.user, job.partitions, tuple(job.gpu_types))
        if key not in self._known:
            qos = {self._partition_qos[name] for name in job.partitions if name in self._partition_qos}
            found = [(_most(limit, job), limit) for limit in self.limits if limit.covers(job, qos)]
            able = [(most, limit.name(job), limit) for most, limit in found if most is not None]
            self._known[key] = tuple(limit for _, _, limit in sorted(able, key=lambda one: one[:2]))
        return self._known[key]


def _most(limit: Limit, job: QueueJob) -> int | None:
    """Return the most GPUs that a limit leaves to a job alone; None where it says nothing of the job's GPU type."""
    types = [gpus for kind, gpus in limit.by_type.items() if not job.gpu_types or kind in job.gpu_types]
    return min([*([] if limit.gpus is None else [limit.gpus]), *types], default=None)


def tenants_of(
    snapshot: Snapshot, kind_of_pool: Mapping[str, str], notes: Counter[str]
) -> dict[str, int | dict[str, int]]:
    """Return the limits that jobs with GPUs count in, by name: GPUs over all pools, or by pool."""
    tenants = Tenants(snapshot)
    out: dict[str, int | dict[str, int]] = {}
    for job in snapshot.jobs:
        binding = tenants.binding(job) if job.gpus else ()
        if len(binding) > 1:
            notes["a job that counts in several limits is planned by the tightest of them"] += 1
        if not binding or (name := binding[0].name(job)) in out:
            continue
        limit = binding[0]
        if limit.gpus is None:
            pools = {
                pool: limit.by_type[kind] for pool, kind in kind_of_pool.items() if kind in limit.by_type
            }
            out[name] = pools
        else:
            out[name] = limit.gpus
            if limit.by_type:
                notes[f"the limits by GPU type of {name} are not planned by, that on all GPUs is"] += 1
    return out
