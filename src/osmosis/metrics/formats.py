"""Text of figures: numbers, shares, money, durations, sizes. A missing value is an en dash, never a zero."""

from collections.abc import Callable

from osmosis.records.run.report import Interval

NOTHING = "–"


def number(value: float | None, digits: int = 3) -> str:
    """`0.712`; whole numbers stay whole."""
    if value is None:
        return NOTHING
    if float(value).is_integer() and abs(value) < 1e15 and digits <= 3:
        return f"{int(value):,}"
    return f"{value:,.{digits}f}"


def score(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.3f}"


def short(value: float, digits: int = 4) -> str:
    """`0.8296`, `51.2k`, `6.144M`."""
    for least, unit, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{value / unit:.{digits}g}{letter}"
    return f"{value:.{digits}g}"


def percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value * 100:.1f} %"


def interval(value: Interval | None, write: Callable[[float | None], str] = score) -> str:
    return NOTHING if value is None else f"{write(value.low)} to {write(value.high)}"


def signed(value: float | None) -> str:
    return NOTHING if value is None else f"{value:+,.3f}".replace("-0.000", "+0.000")


def count(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def dollars(value: float | None) -> str:
    if value is None:
        return "unknown"
    if value < 0.0001:
        return "$0" if value == 0 else "< $0.0001"
    return f"${value:,.4f}" if value < 1 else f"${value:,.2f}"


def duration(milliseconds: float | None) -> str:
    """`840 ms`, `12.3 s`, `4 min 10 s`, `2 h 5 min`."""
    if milliseconds is None:
        return NOTHING
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{milliseconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def size(value: int | None) -> str:
    """`1.4 MB`, in powers of 1000."""
    if value is None:
        return NOTHING
    amount = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000 or unit == "GB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return NOTHING


def p_value(value: float | None) -> str:
    if value is None:
        return NOTHING
    return "< 0.0001" if value < 0.0001 else f"{value:.2g}"
