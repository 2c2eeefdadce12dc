"""Small plots as SVG text, without scripts, for reports that must stand alone."""

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 460, 190
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 26, 30
COLOURS = ("#2f6f9f", "#c2703d", "#4d8f5b", "#8b5fa8", "#9a8430")

Point = tuple[float, float, tuple[float, float] | None]


def histogram(values: Sequence[float], title: str, *, bins: int = 20, unit: str = "") -> str:
    if not values:
        return ""
    low, high = min(values), max(values)
    width = (high - low) / bins or 1.0
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - low) / width))] += 1
    if high == low:
        counts = [len(values)]
    top = max(counts)
    step = (WIDTH - LEFT - RIGHT) / len(counts)
    bars = "".join(
        f'<rect x="{LEFT + i * step + 1:.1f}" y="{_y(count / top):.1f}" width="{max(1.0, step - 2):.1f}" '
        f'height="{_y(0) - _y(count / top):.1f}" fill="{COLOURS[0]}"><title>{low + i * width:.4g}{escape(unit)} '
        f"and up: {count}</title></rect>"
        for i, count in enumerate(counts)
        if count
    )
    labels = _x_label(LEFT, f"{low:.4g}{unit}") + _x_label(WIDTH - RIGHT, f"{high:.4g}{unit}", "end")
    return _frame(title, bars + labels + _y_axis(0, top))


def bars(rows: Sequence[tuple[str, float, tuple[float, float] | None]], title: str) -> str:
    if not rows:
        return ""
    height = TOP + 30 * len(rows) + 24
    left, right = 190, 60
    span = WIDTH - left - right
    parts = []
    for i, (name, value, interval) in enumerate(rows):
        y = TOP + 8 + 30 * i
        length = min(max(value, 0.0), 1.0) * span
        parts.append(f'<text x="{left - 6}" y="{y + 13}" text-anchor="end">{escape(_short(name))}</text>')
        parts.append(f'<rect x="{left}" y="{y}" width="{length:.1f}" height="18" fill="{COLOURS[i % len(COLOURS)]}"/>')
        if interval:
            a, b = (left + min(max(v, 0.0), 1.0) * span for v in interval)
            parts.append(f'<path d="M{a:.1f} {y + 9}H{b:.1f}M{a:.1f} {y + 4}v10M{b:.1f} {y + 4}v10" class="ci"/>')
        parts.append(f'<text x="{left + span + 6}" y="{y + 13}">{value:.3f}</text>')
    return _frame(title, "".join(parts), height=height)


def curves(lines: Sequence[tuple[str, Sequence[Point]]], title: str, x_name: str) -> str:
    points = [p for _, line in lines for p in line]
    if not points:
        return ""
    low, high = min(p[0] for p in points), max(p[0] for p in points)
    span = (high - low) or 1.0

    def x(value: float) -> float:
        return LEFT + (value - low) / span * (WIDTH - LEFT - RIGHT - 10) + 5

    parts = []
    for i, (name, line) in enumerate(lines):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{x(a):.1f},{_y(b):.1f}" for a, b, _ in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for a, b, interval in line:
            parts.append(
                f'<circle cx="{x(a):.1f}" cy="{_y(b):.1f}" r="3" fill="{colour}">'
                f"<title>{escape(name)} at {a:g}: {b:.4f}</title></circle>"
            )
            if interval:
                top, bottom = _y(min(1.0, interval[1])), _y(max(0.0, interval[0]))
                parts.append(f'<path d="M{x(a):.1f} {top:.1f}V{bottom:.1f}" stroke="{colour}"/>')
        parts.append(
            f'<text x="{WIDTH - RIGHT}" y="{TOP + 12 + 14 * i}" text-anchor="end" fill="{colour}">{escape(name)}</text>'
        )
    for value in sorted({p[0] for p in points}):
        parts.append(_x_label(x(value), f"{value:g}", "middle"))
    parts.append(_x_label(WIDTH / 2, x_name, "middle", HEIGHT - 4))
    return _frame(title, "".join(parts) + _y_axis(0, 1))


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _y_axis(low: float, high: float) -> str:
    return (
        f'<text x="{LEFT - 5}" y="{_y(0) + 4:.1f}" text-anchor="end">{low:g}</text>'
        f'<text x="{LEFT - 5}" y="{_y(1) + 4:.1f}" text-anchor="end">{high:g}</text>'
        f'<path d="M{LEFT} {_y(1):.1f}V{_y(0):.1f}H{WIDTH - RIGHT}" class="axis"/>'
    )


def _x_label(x: float, text: str, anchor: str = "start", y: float = HEIGHT - BOTTOM + 14) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _frame(title: str, body: str, *, height: int = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        f'aria-label="{escape(title, quote=True)}"><text x="{LEFT}" y="14" class="title">{escape(title)}</text>'
        f"{body}</svg>"
    )


def _short(name: str) -> str:
    return name if len(name) <= 28 else "…" + name[-27:]
