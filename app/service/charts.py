"""Charts as SVG inside the page: lines, steps and bands over time; colours come from the style sheet."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pandas as pd
from markupsafe import Markup, escape

WIDTH, HEIGHT = 720, 200
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 26

Point = tuple[pd.Timestamp, float]


@dataclass
class Chart:
    """A chart over time.

    Parameters
    ----------
    title
        What it shows, for who cannot see it.
    zone
        IANA zone of the times under it.
    """

    title: str
    zone: str
    bands: list[tuple[str, list[tuple[pd.Timestamp, float, float]]]] = field(default_factory=list)
    lines: list[tuple[str, list[Point], bool]] = field(default_factory=list)
    times: bool = False

    def band(self, style: str, points: Iterable[tuple[pd.Timestamp, float, float]]) -> None:
        """Add an area between two values at each instant."""
        self.bands.append((style, list(points)))

    def line(self, style: str, points: Iterable[Point], steps: bool = False) -> None:
        """Add a line, or one that holds each value until the next instant."""
        self.lines.append((style, list(points), steps))

    def svg(self) -> Markup:
        """Return the chart; empty where there are no points."""
        xs = [p[0] for _, points in self.bands for p in points] + [
            p[0] for _, points, _ in self.lines for p in points
        ]
        ys = [v for _, points in self.bands for p in points for v in p[1:]]
        ys += [p[1] for _, points, _ in self.lines for p in points]
        if len(set(xs)) < 2:
            return Markup("")
        low, high = (min(ys), max(ys)) if self.times else (0.0, max([*ys, 1.0]))
        if high <= low:
            low, high = low - 0.5, high + 0.5
        first, last = min(xs), max(xs)
        span = (last - first).total_seconds()

        def x(at: pd.Timestamp) -> float:
            return round(LEFT + (at - first).total_seconds() / span * (WIDTH - LEFT - RIGHT), 1)

        def y(value: float) -> float:
            return round(HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)

        out = [
            f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.title)}">'
            f"<title>{escape(self.title)}</title>"
        ]
        for value in _ticks(low, high, self.times):
            text = _instant(value, self.zone) if self.times else _short(value)
            out.append(
                f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value)}" y2="{y(value)}"/>'
            )
            out.append(f'<text x="{LEFT - 6}" y="{y(value) + 4}" text-anchor="end">{text}</text>')
        for at in _instants(first, last, self.zone):
            out.append(
                f'<text x="{x(at)}" y="{HEIGHT - 8}" text-anchor="middle">{at.tz_convert(self.zone):%H:%M}</text>'
            )
        for style, area in self.bands:
            top = " ".join(f"{x(at)},{y(b)}" for at, _, b in area)
            back = " ".join(f"{x(at)},{y(a)}" for at, a, _ in reversed(area))
            out.append(f'<polygon class="{escape(style)}" points="{top} {back}"/>')
        for style, points, steps in self.lines:
            out.append(
                f'<polyline class="{escape(style)}" points="{_path([(x(a), y(v)) for a, v in points], steps)}"/>'
            )
        return Markup("".join(out) + "</svg>")


def _path(points: Sequence[tuple[float, float]], steps: bool) -> str:
    out = []
    for k, (a, b) in enumerate(points):
        if steps and k:
            out.append(f"{a},{points[k - 1][1]}")
        out.append(f"{a},{b}")
    return " ".join(out)


def _ticks(low: float, high: float, times: bool) -> list[float]:
    if times:
        return [low + (high - low) * k / 3 for k in range(4)]
    raw = (high - low) / 4
    size = 10.0 ** len(str(int(raw))) / 10 if raw >= 1 else 1.0
    step = next(size * m for m in (1, 2, 5, 10) if size * m >= raw)
    return [low + step * k for k in range(6) if low + step * k <= high]


def _instants(first: pd.Timestamp, last: pd.Timestamp, zone: str) -> list[pd.Timestamp]:
    hours = (last - first) / pd.Timedelta(hours=1)
    every = next((h for h in (1, 2, 3, 6, 12, 24, 48) if hours / h <= 10), 168)
    begin = first.tz_convert(zone).floor("h", ambiguous=True, nonexistent="shift_forward").tz_convert("UTC")
    found = [begin + pd.Timedelta(hours=k) for k in range(int(hours) + 2)]
    return [at for at in found if first <= at <= last and at.tz_convert(zone).hour % min(every, 24) == 0]


def _instant(value: float, zone: str) -> str:
    return f"{pd.Timestamp(value, unit='s', tz='UTC').tz_convert(zone):%a %H:%M}"


def _short(value: float) -> str:
    for size, mark in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{mark}"
    return f"{value:g}"
