import hashlib
import re
from datetime import timedelta
from pathlib import Path

import pytest

from osmosis.records.base import utc_now
from osmosis.records.run.rollout import Category
from osmosis.viewer import page
from osmosis.viewer.charts import histogram
from osmosis.viewer.page import STATIC, TEMPLATES


def test_histogram_counts_every_value_once() -> None:
    values = sorted([0.0] * 5 + [0.5] * 3 + [1.0] * 10)
    found = histogram(values, 1.0)
    bars = found.bars
    shown = [bar for bar in bars if bar["height"]]
    assert [bar["title"].split()[0] for bar in shown] == ["5", "3", "10"]
    assert [bar["passed"] for bar in shown] == [False, False, True]
    assert max(bar["height"] for bar in bars) == 120
    assert [bar["count"] for bar in shown] == [5, 3, 10]
    assert (found.highest, found.total, [text for _, text in found.ticks]) == (
        10,
        18,
        ["0", "0.25", "0.5", "0.75", "1"],
    )
    assert found.threshold_x == found.ticks[-1][0]


def test_the_axis_of_a_histogram_begins_at_the_lowest_reward_that_was_given() -> None:
    found = histogram([0.5, 1.0, 1.0], 0.2)
    assert (found.ticks[0][1], found.threshold_x) == ("0.5", None)


@pytest.mark.parametrize("values", [[], [1.0], [0.5, 0.5]])
def test_no_histogram_of_one_value(values: list[float]) -> None:
    assert histogram(values, 1.0) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "just now"), (200, "3 min ago"), (7300, "2 h ago"), (90_000, "1 day ago"),
        (-30 * 86_400, "in 30 days"), (-7200, "in 2 h"), (-5, "just now"),
    ],
)  # fmt: skip
def test_ago(seconds: float, text: str) -> None:
    assert page.ago(utc_now() - timedelta(seconds=seconds)) == text


def test_every_category_has_advice() -> None:
    assert {page.advice(category) for category in Category} == set(page.ADVICE.values())
    assert page.advice("no such category") == page.ADVICE[Category.UNKNOWN]


VENDOR = STATIC / "vendor"


def test_vendored_files_are_unchanged() -> None:
    listed = dict(reversed(line.split()) for line in (VENDOR / "SHA256SUMS").read_text().splitlines())
    there = {path.name for path in VENDOR.iterdir()} - {"SHA256SUMS", "README.md"}
    assert set(listed) == there
    for name, digest in listed.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.html")), ids=lambda path: path.name)
def test_templates_need_no_inline_script_or_style(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"<script(?![^>]*\ssrc=)", text)
    assert not re.search(r"\s(on[a-z]+|style|hx-on[^=]*)=", text)
    assert "|safe" not in text
    assert not re.search(r"(src|href)=\"(https?:)?//", text)


def themes() -> dict[str, dict[str, str]]:
    """Return the colors of the light and the dark theme."""
    text = (STATIC / "osmosis.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", text, flags=re.DOTALL)
    return {
        name: dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))
        for name, block in zip(("light", "dark"), blocks, strict=True)
    }


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of WCAG 2."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("text", "ground"),
    [
        *((colour, ground) for colour in ("text", "muted", "accent", "bad") for ground in ("bg", "card", "code")),
        ("accent-text", "accent"),
        ("good", "good-bg"),
        ("bad", "bad-bg"),
        ("warn", "warn-bg"),
        ("info", "info-bg"),
        ("good", "card"),
        ("warn", "card"),
    ],
)
def test_text_can_be_read(theme: str, text: str, ground: str) -> None:
    colours = themes()[theme]
    assert contrast(colours[text], colours[ground]) >= 4.5
