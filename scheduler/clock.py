"""Steps in words, with clock times beside them where the problem states when step 0 begins."""

from datetime import UTC, datetime, timedelta, tzinfo

from tidegrid.scheduler.problem import Problem
from tidegrid.zones import zone_of

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


class Clock:
    """Names the steps of a problem.

    Parameters
    ----------
    problem
        Its ``start`` and ``step_minutes`` give the times; without a ``start`` steps are only counted.
    timezone
        IANA zone of the times; UTC where None.

    Raises
    ------
    InputError
        There is no such zone.
    """

    def __init__(self, problem: Problem, timezone: str | None = None) -> None:
        self._zone: tzinfo = UTC if timezone is None else zone_of(timezone)
        self._start = None if problem.start is None else datetime.fromisoformat(problem.start).astimezone(UTC)
        self._minutes = problem.step_minutes
        # A day of the week names an instant only within a week.
        self._short = problem.lookahead * problem.step_minutes < 6 * 24 * 60

    def step(self, t: int) -> str:
        """Return "step 5", or "step 5, Mon 14:00 UTC"."""
        at = self._at(t)
        return f"step {t}" if at is None else f"step {t}, {self._day(at)} {at:%H:%M %Z}"

    def steps(self, start: int, stop: int) -> str:
        """Return "step 3" or "steps 3–5", with from when to when; ``stop`` is exclusive."""
        counted = f"step {start}" if stop == start + 1 else f"steps {start}–{stop - 1}"
        begin, end = self._at(start), self._at(stop)
        if begin is None or end is None:
            return counted
        first = f"{self._day(begin)} {begin:%H:%M}"
        if begin.tzname() != end.tzname():
            first += f" {begin:%Z}"
        last = f"{end:%H:%M %Z}"
        if begin.date() != end.date():
            last = f"{self._day(end)} {last}"
        return f"{counted}, {first}–{last}"

    def during(self, start: int, stop: int) -> str:
        """Return "at step 3" or "in steps 3–5", with times as in `steps`."""
        return f"{'at' if stop == start + 1 else 'in'} {self.steps(start, stop)}"

    def between(self, start: int, stop: int) -> str:
        """Return "from step 6 to step 10", or "from step 6 to step 10, Mon 14:00–18:00 UTC"; ``stop`` is exclusive."""
        times = self.steps(start, stop).partition(", ")[2]
        return f"from step {start} to step {stop}" + (f", {times}" if times else "")

    def gpu_hours(self, gpu_steps: int) -> str:
        """Return GPU-steps as "1 GPU-hour" or "2.5 GPU-hours"."""
        hours = gpu_steps * self._minutes / 60
        return (
            "1 GPU-hour"
            if hours == 1
            else f"{hours:,.4g} GPU-hours"
            if hours < 1000
            else f"{hours:,.0f} GPU-hours"
        )

    def _at(self, t: int) -> datetime | None:
        if self._start is None:
            return None
        try:
            return (self._start + timedelta(minutes=t * self._minutes)).astimezone(self._zone)
        except OverflowError:  # past the year 9999
            return None

    def _day(self, at: datetime) -> str:
        return _DAYS[at.weekday()] if self._short else f"{at:%Y-%m-%d}"


def step_count(count: int) -> str:
    """Return "1 step" or "n steps"."""
    return "1 step" if count == 1 else f"{count} steps"


def gpu_count(count: int) -> str:
    """Return "1 GPU" or "n GPUs"."""
    return "1 GPU" if count == 1 else f"{count} GPUs"
