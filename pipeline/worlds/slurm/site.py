"""What a site says of its Slurm: the file ``slurm.json`` of its folder."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tidegrid.data.prometheus import TrafficSource
from tidegrid.files import read_json
from tidegrid.pipeline.worlds.slurm.entities import QueueJob
from tidegrid.validation import first_error

FILE = "slurm.json"


class SlurmSite(BaseModel):
    """How a Slurm is read, and how decisions are handed over to it.

    Attributes
    ----------
    mode
        ``advise``: nothing is changed. ``rank``: Slurm places, tidegrid orders. ``start``: tidegrid starts the jobs
        that the gate has marked.
    dry_run
        Only log what would be run.
    partitions
        The partitions whose jobs are handed over; empty for all.
    write_eta
        Write the expected start into the admin comment of waiting jobs.
    hold_minutes
        How long a waiting job stays put after the last turn before Slurm may start it by itself.
    verify_seconds
        How long to wait before a start is verified.
    rank_most
        How many of the first jobs of the plan are ranked.
    timezone, country
        The IANA zone that people live by, and the ISO 3166 code of its public holidays, None for none.
    gpu_types
        Slurm's name of a GPU type to the name that estimators know, such as ``{"a100": "A100-SXM-80GB"}``.
    planned_jobs
        How many of the first waiting jobs a turn plans; those behind them are told no time.
    history_days
        How many days of accounting the first turn reads.
    traffic
        Where their traffic comes from beside ``traffic.csv``, as ``cluster.json`` has it.
    apps
        Realtime apps, as ``cluster.json`` has them; a pool's id is Slurm's name of its GPU type.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    mode: Literal["advise", "rank", "start"] = "advise"
    dry_run: bool = True
    partitions: list[str] = Field(default_factory=list)
    write_eta: bool = False
    hold_minutes: Annotated[int, Field(ge=5, le=1440)] = 60
    verify_seconds: Annotated[float, Field(ge=0, le=300)] = 5.0
    rank_most: Annotated[int, Field(ge=1, le=10_000)] = 100
    timezone: str = "UTC"
    country: str | None = None
    gpu_types: dict[str, str] = Field(default_factory=dict)
    planned_jobs: Annotated[int, Field(ge=1, le=100_000)] = 1000
    history_days: Annotated[int, Field(ge=1, le=3650)] = 60
    apps: list[dict[str, Any]] = Field(default_factory=list)
    traffic: TrafficSource | None = None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file; the defaults where it is absent.

        Raises
        ------
        InputError
            A field is unknown, or out of range; it is named.
        """
        if not path.exists():
            return cls()
        try:
            return cls.model_validate(read_json(path))
        except ValidationError as error:
            raise first_error(error, known=cls.model_fields).in_file(path) from None

    def covers(self, job: QueueJob) -> bool:
        """Whether a job is handed over: every partition that it may run in is named here."""
        return not self.partitions or set(job.partitions) <= set(self.partitions)
