"""What Prometheus reads: the state of the last commit, how promises fared, and the service's own figures."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from tidegrid.app.service.running import Service
    from tidegrid.app.service.view import View

NEXT_HOURS = 6
"""Hours ahead over which the coverage risk is summed."""


class Measures:
    """The counters of the server, and the registry that is scraped."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "tidegrid_requests",
            "Requests answered, by route and status.",
            ["route", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "tidegrid_request_seconds",
            "How long requests took, by route.",
            ["route"],
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
            registry=self.registry,
        )

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a request; a stream counts when it ends."""
        self.requests.labels(route, str(status)).inc()
        if not route.endswith("/stream"):
            self.seconds.labels(route).observe(seconds)

    def watch(self, service: "Service") -> None:
        """Add what a service knows."""
        self.registry.register(_Shown(service))


class _Shown(Collector):
    def __init__(self, service: "Service") -> None:
        self.service = service

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield the figures of the moment."""
        service = self.service
        yield _one("tidegrid_leader", "1 where this instance ticks.", float(service.leading))
        yield _one("tidegrid_ready", "1 where there is something to show.", float(service.ready))
        counts = service.counts
        yield _count("tidegrid_ticks", "Commits that this instance made since it began.", counts.ticks)
        yield _count("tidegrid_tick_failures", "Ticks that failed since it began.", counts.failures)
        yield _one(
            "tidegrid_last_tick_failed", "1 where the last tick failed.", float(service.problem is not None)
        )
        yield _one("tidegrid_tick_duration_seconds", "How long the last tick took.", counts.seconds)
        yield _count("tidegrid_questions", "What-ifs that were asked since it began.", counts.questions)
        if service.view is not None:
            age = time.monotonic() - service.ticked_at
            yield _one("tidegrid_tick_age_seconds", "How long ago the last commit was made or seen.", age)
            yield from _of(service.view)

    def describe(self) -> list[GaugeMetricFamily]:
        """Return nothing: what there is depends on the state."""
        return []


def _one(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _count(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)


def _many(name: str, text: str, labels: list[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=labels)


def _of(view: "View") -> Iterator[GaugeMetricFamily]:
    yield _one("tidegrid_tick_number", "The number of the last commit.", view.tick)
    yield _one("tidegrid_gpus", "GPUs of all pools.", view.head["gpus"])
    yield _one("tidegrid_gpus_down", "GPUs that do not work.", view.head["gpus_down"])
    yield _one(
        "tidegrid_files_age_hours",
        "Age of the newest thing that the files tell of.",
        view.head["aged_hours"],
    )
    yield _one(
        "tidegrid_set_aside_rows", "Rows of the files that cannot be used.", view.commit.get("set_aside", 0)
    )
    planned = _many("tidegrid_planned_gpus", "GPUs that an app holds from step 0 on.", ["app"])
    needed = _many(
        "tidegrid_needed_gpus", "GPUs that an app needs in step 0, at the policy's quantile.", ["app"]
    )
    risk = _many(
        "tidegrid_coverage_risk_gpu_hours",
        f"GPU-hours that an app is short of in the next {NEXT_HOURS} hours.",
        ["app"],
    )
    step_h = view.head["step_minutes"] / 60
    steps = max(1, round(NEXT_HOURS / step_h))
    for app in view.apps:
        planned.add_metric([app["app"]], app["held"])
        needed.add_metric([app["app"]], app["need"][0] if app["need"] else 0)
        short = sum(max(0, n - p) for n, p in list(zip(app["need"], app["planned"], strict=False))[:steps])
        risk.add_metric([app["app"]], short * step_h)
    yield from (planned, needed, risk)
    queue = _many("tidegrid_queue_jobs", "Waiting jobs, by priority and kind.", ["priority", "kind"])
    asked = _many(
        "tidegrid_queue_gpus",
        "GPUs that they ask for, by priority and kind.",
        ["priority", "kind"],
    )
    sums: dict[tuple[str, str], list[int]] = {}
    for job in view.jobs.values():
        if job["state"] in ("waiting", "starting"):
            entry = sums.setdefault((str(job["priority"]), job["kind"]), [0, 0])
            entry[0] += 1
            entry[1] += job["gpus_asked"]
    for labels, (jobs, gpus) in sorted(sums.items()):
        queue.add_metric(list(labels), jobs)
        asked.add_metric(list(labels), gpus)
    yield from (queue, asked)
    now = pd.Timestamp(view.now)
    waits = [
        (pd.Timestamp(job["start"]["q0.5"]) - now).total_seconds()
        for job in view.jobs.values()
        if job["state"] == "waiting" and job["start"] is not None
    ]
    yield _one(
        "tidegrid_queue_last_start_seconds",
        "Until the last expected start of the queue.",
        max(waits, default=0.0),
    )
    eta = _many(
        "tidegrid_eta_error_minutes", "Median distance of ends from expected ends, 30 days.", ["kind"]
    )
    ends = _many("tidegrid_eta_coverage", "Share of ends inside their 80 % band, 30 days.", ["kind"])
    for one in view.fared["kinds"]:
        eta.add_metric([one["kind"]], one["error_minutes"])
        ends.add_metric([one["kind"]], one["covered"])
    yield from (eta, ends)
    covered = _many(
        "tidegrid_forecast_coverage", "Share of hours inside their 80 % band, 30 days.", ["series"]
    )
    error = _many("tidegrid_forecast_error", "Median error of traffic an hour ahead, as a share.", ["series"])
    for one in view.fared["series"]:
        if one["covered"] is not None:
            covered.add_metric([one["series"]], one["covered"])
        if one["error"] is not None:
            error.add_metric([one["series"]], one["error"])
    yield from (covered, error)
