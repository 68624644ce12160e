"""What the API answers, as it stands in the OpenAPI document."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Band(BaseModel):
    """Instants (UTC) at three quantiles: an 80 % band and its middle."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    low: str = Field(alias="q0.1")
    middle: str = Field(alias="q0.5")
    high: str = Field(alias="q0.9")


class Task(_Document):
    """Neighbouring GPUs of a node and what is on them: a job, an app, ``down``, or nothing."""

    task: str
    kind: str
    first_gpu: int
    gpus: int


class Node(_Document):
    """A node once the commit is acted on."""

    pool: str
    node: str
    gpus: int
    free: int
    tasks: list[Task]


class Pool(_Document):
    """GPUs of one type."""

    pool: str
    gpus: int
    gpu_type: str
    node_size: int | None
    down: int


class Instance(_Document):
    """What this instance of the service does."""

    leading: bool
    doing: str
    problem: str | None
    shadow: bool
    tick: int | None
    now: str | None


class Day(_Document):
    """A day in shadow mode: what the site did, and what the decisions that nobody followed would have done."""

    day: str
    started: int
    wait_h: float | None
    sooner: int
    sooner_h: float | None
    idle_gpu_hours: float
    held_gpu_hours: float
    planned_gpu_hours: float
    short_gpu_hours: float
    planned_short_gpu_hours: float


class Shadow(_Document):
    """Shadow mode day by day, the newest day first."""

    tick: int
    now: str
    days: list[Day]


class State(_Document):
    """The cluster at the last commit."""

    tick: int
    now: str
    timezone: str
    gpus: int
    gpus_down: int
    running: int
    waiting: int
    lost: list[str]
    steps: int
    step_minutes: int
    synthetic: bool
    seconds: float
    aged_hours: float
    pools: list[Pool]
    nodes: list[Node]
    risks: list[str]
    deadlines: list[str]
    notes: list[str]
    instance: Instance


class Moved(_Document):
    """What a job was told by a tick: expected start with its band, and end."""

    tick: int
    now: str
    start: str
    low: str
    high: str
    end: str


class Job(_Document):
    """A job: what it is, when it is expected, and why it waits."""

    job: str
    state: str = Field(description="lost, running, starting, waiting or refused")
    kind: str
    name: str
    user: str
    tenant: str
    priority: int
    planned_priority: float | None = Field(
        description="raised by waiting and by shortness; null where not planned"
    )
    gpus: int = Field(description="of its place; those asked for where it has none")
    gpus_asked: int
    pool: str | None
    place: str | None
    submitted: str | None
    started: str | None
    deadline: str | None
    start: Band | None
    end: Band | None
    reason: str
    moves: list[Moved] = Field(description="how its expected times moved, the oldest first")


class Jobs(_Document):
    """Jobs that were found, a page of them."""

    tick: int
    now: str
    total: int
    offset: int
    jobs: list[Job]


class GridPool(_Document):
    """A pool of the plan."""

    pool: str
    gpus: int
    node_size: int | None


class Plan(_Document):
    """Who gets which GPU when; positions refer to ``tasks``, ``kind_names`` and ``pools``."""

    tick: int
    now: str
    by: str = Field(description="gpu, or node on large clusters")
    start: str | None
    step_minutes: int
    steps: int
    pools: list[GridPool]
    kind_names: list[str]
    tasks: list[str]
    kinds: list[int]
    blocks: list[list[int]] | None = Field(
        default=None, description="[task, pool, first GPU, GPUs, first step, steps]; left out by node"
    )
    nodes: list[list[Any]] | None = Field(
        default=None,
        description="[pool, node, GPUs, stretches]; a stretch is [steps, GPUs in use by kind…], from step 0 on",
    )
    figures: dict[str, dict[str, float]] = Field(description="of this plan, and of first come, first served")


class Hour(_Document):
    """The forecast of an hour of traffic, units."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    hour: str
    basis: str
    low: float | None = Field(alias="q0.1")
    middle: float | None = Field(alias="q0.5")
    high: float | None = Field(alias="q0.9")


class PastHour(_Document):
    """An hour of traffic that was forecast an hour before, and what came; null while it is not known."""

    series: str
    hour: str
    low: float
    mid: float
    high: float
    actual: float | None
    model: str


class Held(_Document):
    """GPUs that an app held from a tick on."""

    now: str
    gpus: int


class App(_Document):
    """A realtime app: what it needs and gets by step, and its traffic."""

    app: str
    pool: str
    priority: int
    series: str
    swap_cap: int | None
    held_before: int
    held: int
    need: list[int]
    planned: list[int]
    forecast: list[Hour]
    past: list[PastHour]
    held_past: list[Held]


class Forecasts(_Document):
    """All apps."""

    tick: int
    now: str
    step_minutes: int
    apps: list[App]


class SeriesFared(_Document):
    """How the forecasts of a series fared, an hour ahead, over 30 days."""

    series: str
    hours: int
    covered: float | None
    error: float | None
    bias: float | None
    model: str


class KindFared(_Document):
    """How expected ends fared, by workload kind, over 30 days."""

    kind: str
    jobs: int
    covered: float | None
    error_minutes: float
    within_30: float | None


class Accuracy(_Document):
    """How forecasts and expected times fared."""

    tick: int
    now: str
    overall: dict[str, Any]
    series: list[SeriesFared]
    kinds: list[KindFared]


class Saved(_Document):
    """An app's week: what it held, and what peak reservation would have."""

    week: str
    app: str
    hours: float
    peak_gpus: float
    reserved_gpu_hours: float
    held_gpu_hours: float
    saved_gpu_hours: float
    saved_money: float | None
    unmet_gpu_hours: float


class Tenant(BaseModel):
    """A tenant's use over four weeks, and what it holds and asks for now."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    tenant: str
    jobs: int
    gpu_hours: float
    wait_h_median: float | None
    wait_h_high: float | None = Field(alias="wait_h_q0.9")
    gpus_running: int
    gpus_waiting: int
    limit: int | dict[str, int] | None


class Savings(_Document):
    """What planning saves."""

    tick: int
    now: str
    currency: str
    weeks: list[Saved]
    tenants: list[Tenant]
    figures: dict[str, dict[str, float]]


class Model(BaseModel):
    """An estimator's versions; ``problem`` alone where they cannot be read."""

    model_config = ConfigDict(extra="forbid")

    name: str
    champion: str | None = None
    challenger: str | None = None
    earlier: list[str] = []
    created: str | None = None
    versions: list[str] = []
    problem: str | None = None


class Models(_Document):
    """Which model answers."""

    models: list[Model]


class Event(_Document):
    """A surprise."""

    now: str
    kind: str
    subject: str
    text: str


class Events(_Document):
    """The latest surprises, the newest first."""

    events: list[Event]


class CommitEntry(_Document):
    """A commit, in short."""

    tick: int
    now: str
    starts: int
    running: int
    waiting: int
    risks: int
    plan_sha256: str


class Commits(_Document):
    """The latest commits, the newest first."""

    commits: list[CommitEntry]


class Expected(_Document):
    """Where and when a job is expected."""

    pool: str
    gpus: int
    start: Band
    end: Band


class MovedJob(_Document):
    """A job whose expected times move."""

    job: str
    before: Expected | None
    after: Expected | None
    start_moves_minutes: float | None


class NewJob(_Document):
    """What the job that was asked about is told."""

    job: str
    expected: Expected | None
    reason: str
    refused: bool


class AppBeside(_Document):
    """An app before and after, by step."""

    app: str
    need_before: list[int]
    need_after: list[int]
    gpus_before: list[int]
    gpus_after: list[int]


class Lines(_Document):
    """Lines before and after."""

    before: list[str]
    after: list[str]


class Refused(_Document):
    """A job that cannot run as asked."""

    job: str
    reason: str


class Answer(_Document):
    """What would be decided, beside what is decided."""

    now: str
    before: dict[str, float]
    after: dict[str, float]
    job: NewJob | None
    moved: list[MovedJob]
    moved_in_all: int
    lost: list[str]
    apps: list[AppBeside]
    risks: Lines
    deadlines: Lines
    refused: list[Refused]


class Wanted(_Document):
    """A tick that was asked for."""

    wanted: bool
    leading: bool


class Promotion(_Document):
    """Which version is to answer; null for the champion before."""

    version: str | None = Field(default=None, max_length=100)
