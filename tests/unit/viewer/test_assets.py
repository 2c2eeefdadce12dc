"""Files of others are what they were when they were taken in; ours obey the content security policy."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from osmosis.viewer.render import STATIC, TEMPLATES

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
    """The colours of the light and the dark theme."""
    text = (STATIC / "osmosis.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", text, flags=re.DOTALL)
    return {
        name: dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))
        for name, block in zip(("light", "dark"), blocks, strict=True)
    }


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2."""

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
