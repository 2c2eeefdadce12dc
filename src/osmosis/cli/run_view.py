"""How a run of the platform looks in a terminal: what it is, why it failed, its figures.

Draws records and platform bodies; computes nothing.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from ..metrics.alarms import alarms
from ..records.report import Report
from .figures import draw_report
from .output import clean
from .render import pairs


def draw_run(console: Console, head: dict[str, Any], report: Report | None, failure: dict[str, Any] | None) -> None:
    """One run: what it is, its figures, why it failed."""
    console.print(pairs(head))
    if failure:
        console.print()
        phase = f"{failure.get('phase')}/{failure.get('category')}"
        console.print(Text(f"failed in {phase}: ", style="bold red") + Text(clean(failure.get("message"))))
        if failure.get("fix"):
            console.print(Text("  try: ", style="bold") + Text(clean(failure["fix"])))
    if report is not None and report.completed:
        console.print()
        over = not str(head.get("status")).startswith(("pending", "running"))
        draw_report(console, report, alarms(report, str(head.get("model") or ""), over=over))
