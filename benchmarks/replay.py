"""Measure planning policies on replays of public traces: value, waits, expected ends, cost.

    python benchmarks/replay.py policies [--gpus 640 768] [--days N] [--report OUT.html]
    python benchmarks/replay.py jobs-alone | eta | drac | resolution | guard | tune | speed | same | dask

The jobs are helios_venus15k, in a line with GPU counts rounded up to powers of two, with realtime of servegen_totals
(m-mid and m-small, repeated as needed) whose joint peak is a quarter of the pool; `drac` plays drac_cedar_gpu with
the same traffic. `jobs-alone` has no realtime and one priority, and goes on until all jobs have ended. True durations
and true demand are hidden from a policy unless its name says so. Every table has the CPU seconds (user + system) of
each replay, measured in its own process; the first replay of a process also loads compiled code. Whole traces take
long: shorten them with --days.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from tidegrid.errors import InputError, TidegridError
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.replay import Result, Trace, sweep, trace_from_files
from tidegrid.pipeline.replay.measures import digest, regret
from tidegrid.pipeline.replay.run import run_one
from tidegrid.pipeline.replay.tuning import UNMET_SHARE, tune, with_parameters

QUEUES = ("fifo", "fifo_backfill", "easy", "easy_priority", "sjf")
LOOPS = (
    "rolling", "rolling_perfect", "rolling_perfect_durations", "rolling_perfect_demand", "rolling_medians",
    "rolling_peak",
)  # fmt: skip
ALONE = ("fifo", "easy_perfect", "sjf_perfect", "rolling", "rolling_perfect")
DRAC = ("fifo", "easy_limits", "easy_priority", "easy_priority_limits", "fifo_backfill_limits", *LOOPS)
DRAC_GPUS = 160
"""Contended: the jobs of drac_cedar_gpu need 128 GPUs on average, realtime 23, and a burst of ten days over 300."""

WIDE = 32
"""GPUs from which a job is a wide one."""

DRAIN_DAYS = 7
SERIES = ("m-mid", "m-small")


def load(
    args: argparse.Namespace, gpus: int, trace: str = "helios_venus15k", seed: int | None = None
) -> Trace:
    folder = Path(args.data)
    return trace_from_files(
        folder / "traces" / f"{trace}.csv.gz",
        folder / "traffic" / "servegen_totals.csv.gz",
        gpus=gpus,
        placement=args.placement,
        elastic=args.elastic,
        series=SERIES,
        days=args.days,
        skip_days=args.skip_days,
        seed=args.seed if seed is None else seed,
    )


def play(
    args: argparse.Namespace,
    on: Trace,
    policies: Sequence[str],
    policy: Policy | None = None,
    label: str = "",
) -> dict[str, Result]:
    """Replay each policy and print its row as soon as it is there."""
    parameters, options = with_parameters(args.parameters, policy)
    print_row(HEAD, label)
    print_row(["---", *["---:"] * (len(HEAD) - 1)])
    out = {}
    chunk = max(1, args.jobs)
    for k in range(0, len(policies), chunk):
        found = sweep({"": on}, policies[k : k + chunk], parameters, jobs=args.jobs, **options)
        for (_, name), result in found.items():
            out[name] = result
            print_row(row(name, result))
    print()
    return out


HEAD = [
    "policy", "value", "of limit", "discounted", "utilization", "unmet", "swaps", "completed", "JCT h mean", "median",
    "95th", "wait h mean", "median", "95th", "slowdown mean", "95th", "ETA 80 %", "≤ 30 min under 4 h",
    "at submit 80 %", "≤ 30 min under 4 h", "told, later by 1 h", "work ÷ occupied", "plans", "CPU s",
]  # fmt: skip


def row(name: str, result: Result) -> list[str]:
    f = result.figures
    jct, wait, slow = f["jct_h"], f["wait_h"], f["slowdown"]
    return [
        name, f"{f['value']:.0f}", share(f["value_share_of_limit"]), f"{f['value_discounted']:.0f}",
        share(f["utilization"]), share(f["unmet_share"], 2), str(f["swaps"]), f"{f['completed']}/{f['jobs']}",
        f"{jct['mean']:.2f}", f"{jct['median']:.2f}", f"{jct['p95']:.1f}", f"{wait['mean']:.2f}",
        f"{wait['median']:.2f}", f"{wait['p95']:.1f}", f"{slow['mean']:.1f}", f"{slow['p95']:.1f}",
        *eta_cells(f["eta"]), *eta_cells(f["eta_submit"]), share(f["later_than_told"]),
        f"{f['work_share']:.2f}", str(f["plans"]), f"{result.cpu_s:.1f}",
    ]  # fmt: skip


def eta_cells(eta: Mapping[str, Any]) -> list[str]:
    if not eta["told"]:
        return ["", ""]
    return [share(eta["coverage_80"]), share(eta["short"]["within_30_min"])]


def print_row(cells: Sequence[str], label: str = "") -> None:
    if label:
        print(f"{label}\n", flush=True)
    print("| " + " | ".join(cells) + " |", flush=True)


def share(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def said(on: Trace) -> str:
    """State the trace: its size, and how contended it is."""
    hours = on.end_s / 3600
    asked = float((on.size * on.duration_s).sum()) / on.end_s
    demand = float(on.demand().sum()) / hours if on.apps else 0.0
    return (
        f"{len(on.jobs)} jobs, {hours / 24:.2f} days, {on.gpus} GPUs; jobs ask for {asked:.0f} GPUs and realtime for "
        f"{demand:.0f} on average; trace {on.digest()[:12]}"
    )


def policies(args: argparse.Namespace) -> None:
    for gpus in args.gpus or (640, 768):
        on = load(args, gpus)
        found = play(args, on, args.policy or (*QUEUES, *LOOPS), label=said(on))
        compare(found)
        if args.report:
            write(args, on, list(found.values()), gpus)


def compare(found: Mapping[str, Result]) -> None:
    """Print the ratios that policies are judged by."""
    f = {name: result.figures for name, result in found.items()}
    rows: list[tuple[str, str]] = []
    for line in regret({name: figures["value"] for name, figures in f.items()}):
        rows.append((f"value of rolling ÷ {line['policy']}", f"{line['kept']:.3f}"))
    if "rolling" in f:
        for other in ("fifo", "easy_priority", "easy_priority_limits"):
            if other in f:
                gain = f["rolling"]["value"] / f[other]["value"] - 1 if f[other]["value"] else float("nan")
                rows.append((f"value of rolling against {other}", f"{100 * gain:+.1f} %"))
                points = 100 * (f["rolling"]["utilization"] - f[other]["utilization"])
                rows.append((f"utilization of rolling against {other}", f"{points:+.1f} points"))
        for app in f["rolling"]["by_app"]:
            rows.append((f"unmet realtime of rolling, {app['app']}", share(app["unmet_share"], 2)))
    if rows:
        print_row(["measure", "found"])
        print_row(["---", "---:"])
        for cells in rows:
            print_row(cells)
        print()


def jobs_alone(args: argparse.Namespace) -> None:
    for gpus in args.gpus or (640,):
        on = drained(load(args, gpus).without_apps().equal_priorities())
        found = play(args, on, args.policy or ALONE, label=said(on))
        wide = on.size >= WIDE
        print_row(["policy", f"mean wait of the {wide.sum()} jobs of {WIDE} GPUs and more, h"])
        print_row(["---", "---:"])
        for name, result in found.items():
            wait = np.minimum(result.outcome.start, on.end_s) - on.submit_s
            print_row([name, f"{wait[wide].mean() / 3600:.2f}"])
        print()
        if args.report:
            write(args, on, list(found.values()), gpus)


def drained(on: Trace) -> Trace:
    """Go on after the last submission until every job can have ended: times to completion are then true."""
    last = float((on.submit_s + on.duration_s).max()) + DRAIN_DAYS * 86400.0
    return replace(on, end_s=3600.0 * math.ceil(last / 3600.0))


def eta(args: argparse.Namespace) -> None:
    for gpus in args.gpus or (640,):
        on = load(args, gpus)
        for name, result in play(args, on, args.policy or ("rolling",), label=said(on)).items():
            print_row(
                [
                    f"{name}: told at",
                    "jobs",
                    "jobs scored",
                    "in the 80 % band",
                    "within 10 min",
                    "within 30 min",
                ]
            )
            print_row(["---", "---", *["---:"] * 4])
            for when, key in (("start", "eta"), ("submission", "eta_submit")):
                of = result.figures[key]
                for which, f in (("all", of), ("under 4 h", of["short"])):
                    cells = (f["coverage_80"], f["within_10_min"], f["within_30_min"])
                    print_row([when, which, str(f["told"]), *map(share, cells)])
            print()


def drac(args: argparse.Namespace) -> None:
    for gpus in args.gpus or (DRAC_GPUS,):
        on = load(args, gpus, "drac_cedar_gpu")
        found = play(args, on, args.policy or DRAC, label=said(on))
        compare(found)
        if args.report:
            write(args, on, list(found.values()), gpus)


def variants(
    args: argparse.Namespace,
    named: Mapping[str, Policy],
    names: Sequence[str] = ("rolling", "rolling_perfect"),
) -> None:
    for gpus in args.gpus or (640,):
        on = load(args, gpus)
        for label, policy in named.items():
            play(args, on, args.policy or names, policy, f"{label}: {said(on)}")


def resolution(args: argparse.Namespace) -> None:
    variants(args, {f"steps of {m} minutes": Policy(step_minutes=m) for m in (60, 30, 15)})


def guard(args: argparse.Namespace) -> None:
    named = {
        f"horizon {h} h, lookahead {ahead} h": Policy(horizon_hours=h, lookahead_hours=ahead)
        for h in (6, 24)
        for ahead in (24, 0)
    }
    variants(args, named)


def speed(args: argparse.Namespace) -> None:
    for gpus in args.gpus or (640,):
        on = load(args, gpus)
        warm_up(args, args.policy or (*QUEUES, *LOOPS))
        print(said(on))
        print_row(["policy", "CPU s", "plans", "CPU ms a plan"])
        print_row(["---", "---:", "---:", "---:"])
        parameters, options = with_parameters(args.parameters)
        for name in args.policy or (*QUEUES, *LOOPS):
            result = run_one(on, name, parameters, **options)
            plans = result.outcome.plans
            each = f"{1000 * result.cpu_s / plans:.1f}" if plans else ""
            print_row([name, f"{result.cpu_s:.1f}", str(plans), each])
        print()


def warm_up(args: argparse.Namespace, names: Sequence[str]) -> None:
    """Load compiled code, so that it is not counted as a policy's own time."""
    short = load(argparse.Namespace(**{**vars(args), "days": 0.25, "skip_days": 0}), 64)
    for name in names:
        run_one(short, name)


def same(args: argparse.Namespace) -> None:
    on = load(args, (args.gpus or [640])[0])
    parameters, options = with_parameters(args.parameters)
    print(said(on))
    print_row(["policy", "first replay", "second replay, in another process", "the same bytes", "CPU s"])
    print_row(["---"] * 5)
    different = 0
    for name in args.policy or (*QUEUES, "rolling"):
        one = run_one(on, name, parameters, **options)
        two = sweep({"a": on, "b": on}, [name], parameters, jobs=2, **options)["b", name]
        digests = digest(one.outcome), digest(two.outcome)
        alike = digests[0] == digests[1] and one.figures == two.figures
        different += not alike
        cost = f"{one.cpu_s:.1f} + {two.cpu_s:.1f}"
        print_row([name, digests[0][:16], digests[1][:16], "yes" if alike else "no", cost])
    if different:
        sys.exit(1)


def dask_workers(args: argparse.Namespace) -> None:
    try:
        import dask.config
        from distributed import Client, LocalCluster
    except ImportError:
        raise InputError("the package distributed is not installed", fix="install tidegrid[dask]") from None
    gpus = (args.gpus or [640])[0]
    traces = {f"seed {seed}": load(args, gpus, seed=args.seed + seed) for seed in range(8)}
    names = args.policy or ("rolling",)
    parameters, options = with_parameters(args.parameters)
    short = replace(next(iter(traces.values())), end_s=3600.0)
    print(said(next(iter(traces.values()))))
    # the workers' sampling profiler costs a replay several percent
    dask.config.set({"distributed.worker.profile.enabled": False})
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        with Client(cluster) as client:
            # imports and compiled code are loaded on both sides before the clock runs
            client.run(lambda: [run_one(short, name, parameters, **options) for name in names] and None)
            began = time.perf_counter()
            beside = sweep(traces, names, parameters, backend="dask", **options)
            two = time.perf_counter() - began
        for name in names:
            run_one(short, name, parameters, **options)
        began = time.perf_counter()
        alone = sweep(traces, names, parameters, **options)
        one = time.perf_counter() - began
    alike = all(digest(alone[k].outcome) == digest(beside[k].outcome) for k in alone)
    print_row(["measure", "found"])
    print_row(["---", "---:"])
    print_row(["replays", str(len(alone))])
    print_row(["elapsed, one process ÷ two Dask workers", f"{one / two:.2f}"])
    print_row(["CPU s of the replays, one process", f"{sum(r.cpu_s for r in alone.values()):.1f}"])
    print_row(["CPU s of the replays, two workers", f"{sum(r.cpu_s for r in beside.values()):.1f}"])
    print_row(["results the same to the byte", "yes" if alike else "no"])
    if not alike:
        sys.exit(1)


def search(args: argparse.Namespace) -> None:
    gpus = (args.gpus or [640])[0]
    traces = {f"seed {seed}": load(args, gpus, seed=seed) for seed in args.seeds or (args.seed,)}
    for name, on in traces.items():
        print(f"{name}: {said(on)}")
    parameters, options = with_parameters(args.parameters)
    tried = dict(map(values, args.tries)) or None
    heads: list[str] = []

    def told(found: dict[str, Any]) -> None:
        if not heads:
            heads.extend(found)
            print_row(heads)
            print_row(["---:"] * len(heads))
        print_row([f"{value:.5g}" for value in found.values()])

    name = (args.policy or ("rolling",))[0]
    result = tune(
        traces,
        tried,
        unmet_share=args.unmet,
        base=parameters,
        options=options,
        name=name,
        jobs=args.jobs,
        each=told,
    )
    best = " ".join(f"{k}={v:g}" for k, v in result.best.items())
    within = "" if result.within else ", which none keeps: this one has the least"
    print(f"\nbest at {share(args.unmet)} unmet{within}: --set {best}")


def write(args: argparse.Namespace, on: Trace, results: Sequence[Result], gpus: int) -> None:
    from tidegrid.app.replay_report import write_replay_report

    path = Path(args.report)
    if len(args.gpus or ()) != 1:
        path = path.with_stem(f"{path.stem}-{gpus}")
    write_replay_report(on, results, path, title=f"{args.measure}, {gpus} GPUs")
    print(f"report: {path}")


MEASURES: dict[str, tuple[Callable[[argparse.Namespace], None], str]] = {
    "policies": (policies, "policies side by side, forecasts against perfect knowledge"),
    "jobs-alone": (jobs_alone, "time to completion without realtime, equal priorities"),
    "eta": (eta, "expected ends, told at start and at submission"),
    "drac": (drac, f"policies on drac_cedar_gpu with users' time limits, {DRAC_GPUS} GPUs"),
    "resolution": (resolution, "steps of 60, 30 and 15 minutes"),
    "guard": (guard, "with and without demand past the horizon"),
    "tune": (
        search,
        "the rolling allocator's parameters, searched; score the best on other days (--skip-days)",
    ),
    "speed": (speed, "CPU seconds of each policy"),
    "same": (same, "two replays with one seed, compared to the byte; exit code 1 if they differ"),
    "dask": (
        dask_workers,
        "eight replays: one process against two Dask workers; exit code 1 if results differ",
    ),
}


def main() -> None:
    shared = Path(os.environ.get("TIDEGRID_SHARED", Path(__file__).parents[2] / "shared"))
    listed = "\n".join(f"  {name:<11} {text}" for name, (_, text) in MEASURES.items())
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f"measures:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("measure", choices=MEASURES, metavar="MEASURE", help="what to measure; see below")
    parser.add_argument(
        "--data", default=str(shared / "data"), help="folder of the public traces and traffic"
    )
    parser.add_argument("--gpus", type=int, nargs="+", help="sizes of the pool")
    parser.add_argument("--placement", choices=("line", "node"), default="line", help="how jobs are placed")
    parser.add_argument(
        "--elastic",
        type=float,
        default=1.0,
        help="jobs may have so many times fewer or more GPUs (default 1)",
    )
    parser.add_argument("--policy", nargs="+", help="policies, in place of the measure's own")
    parser.add_argument("--days", type=float, help="only so many days of the trace")
    parser.add_argument("--skip-days", type=int, default=0, help="leave out the trace's first days")
    parser.add_argument("--seed", type=int, default=0, help="seed of the users' priorities (default 0)")
    parser.add_argument("--jobs", type=int, default=1, help="replays to play at once (default 1)")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="NAME=VALUE", help="parameters of the rolling allocator"
    )
    parser.add_argument(
        "--try", nargs="+", default=[], metavar="NAME=V,V", dest="tries", help="tune: values to try"
    )
    parser.add_argument(
        "--unmet", type=float, default=UNMET_SHARE, help="tune: wanted share of unmet realtime"
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", help="tune: seeds to average over, in place of --seed"
    )
    parser.add_argument("--report", help="also write the report as an HTML file (policies, jobs-alone, drac)")
    args = parser.parse_args()
    args.parameters = dict(map(parameter, args.set))
    if (args.days is not None and args.days <= 0) or args.skip_days < 0:
        raise InputError("is out of range", field="--days, --skip-days", fix="give positive numbers")
    MEASURES[args.measure][0](args)


def parameter(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        raise InputError(f"{text!r} is not NAME=VALUE", field="--set", fix="write shortness=0.3") from None


def values(text: str) -> tuple[str, list[float]]:
    name, _, listed = text.partition("=")
    return name, [parameter(f"{name}={value}")[1] for value in listed.split(",")]


if __name__ == "__main__":
    try:
        main()
    except TidegridError as error:
        print(f"replay: {error}", file=sys.stderr)
        sys.exit(2)
