"""The planner's parameters."""

from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tidegrid.errors import InputError
from tidegrid.files import read_json
from tidegrid.validation import first_error

MOST_AGING = 0.9
"""What waiting can add to a priority: less than 1, the distance to the next class."""


class Policy(BaseModel):
    """How to turn forecasts into a problem.

    Parameters
    ----------
    step_minutes
        Length of a step.
    horizon_hours
        Length of the plan, in elapsed time.
    lookahead_hours
        How far past the horizon the demand is forecast, so that jobs that outrun it pay for what they block.
    decay
        Weight of step t is ``decay ** t``: capacity used now is worth more than capacity promised.
    shortfall_weight
        What an unmet realtime GPU-step costs, in batch GPU-steps of the same priority; 5 to 10 is sane.
    floor_weight
        How much more an unmet GPU-step costs below an app's floor, the replicas that are always up.
    gpu_cost
        What a GPU-step that a job occupies costs, in the unit of value (priority · GPU-steps of work).
    swap_cost
        What a GPU that enters an app costs, in GPU-steps of the app's priority: a cold start.
    job_quantile
        The quantile of a job's duration that is planned with.
    demand_quantile
        The quantile of an app's demand that is planned with.
    finish_inside
        Whether every job must end by the horizon.
    aging
        Priority that a job gains for each day that it has waited, at most ``MOST_AGING`` in all, so that a job never
        reaches the next class. This and the next are for planning again and again; a single plan leaves them.
    shortness
        How much short jobs are preferred: a job of h hours is planned with its priority times h ** -shortness. 0 keeps
        to the priorities; more shortens waits, and lets short jobs of a lower priority pass long ones of a higher.
    promise_price
        What each step costs that a waiting job's told start moves later, as a share of what a step of the job earns.
    scaling
        How the speed of a job grows with its GPUs where no estimator knows it: as their number to this power. None:
        such a job is offered the size that it asks for alone.
    stale_hours
        How old the newest thing that the files tell of may be, in hours: on older files nothing is started.
    estimators
        Workload kind to the name of the estimator that answers for it, such as a plugin's; where a kind is not
        named, the estimator of its own name answers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    step_minutes: int = Field(default=60, ge=1, le=1440)
    horizon_hours: float = Field(default=24.0, gt=0, le=168)
    lookahead_hours: float = Field(default=24.0, ge=0, le=168)
    decay: float = Field(default=0.98, ge=0.001, le=1)
    shortfall_weight: float = Field(default=8.0, ge=0, le=1e6, allow_inf_nan=False)
    floor_weight: float = Field(default=10.0, ge=0, le=1e6, allow_inf_nan=False)
    gpu_cost: float = Field(default=0.0, ge=0, le=1e6, allow_inf_nan=False)
    swap_cost: float = Field(default=0.0, ge=0, le=1e6, allow_inf_nan=False)
    job_quantile: float = Field(default=0.5, gt=0, lt=1)
    demand_quantile: float = Field(default=0.9, gt=0, lt=1)
    finish_inside: bool = False
    aging: float = Field(default=0.05, ge=0, le=100)
    shortness: float = Field(default=0.0, ge=0, le=4)
    promise_price: float = Field(default=0.0, ge=0, le=1e6, allow_inf_nan=False)
    scaling: float | None = Field(default=None, ge=0, le=1)
    stale_hours: float = Field(default=24.0, gt=0, le=8760)
    estimators: dict[str, str] = Field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Steps of the horizon."""
        return max(1, round(self.horizon_hours * 60 / self.step_minutes))

    @property
    def lookahead_steps(self) -> int:
        """Steps past the horizon for which demand is forecast."""
        return round(self.lookahead_hours * 60 / self.step_minutes)

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a policy from a JSON object; what it leaves out keeps its default.

        Raises
        ------
        InputError
            A parameter is unknown or out of range; it is named.
        """
        try:
            return cls.of(read_json(path))
        except InputError as error:
            raise error if error.file else error.in_file(path) from None

    @classmethod
    def of(cls, parameters: Any) -> Self:
        """Make a policy of a JSON object; what it leaves out keeps its default.

        Raises
        ------
        InputError
            A parameter is unknown or out of range; it is named.
        """
        try:
            return cls.model_validate(parameters)
        except ValidationError as error:
            raise first_error(error, known=cls.model_fields) from None
