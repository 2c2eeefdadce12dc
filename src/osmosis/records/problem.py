"""One finding of a check: what is wrong, where, and what to type next. Shared by config checks, preflight, doctor."""

from __future__ import annotations

from typing import Literal

from .base import Record

Severity = Literal["error", "warning", "info"]


class Problem(Record):
    code: str
    """Stable word for scripts, e.g. `dirty-rollout`."""
    what: str
    """What happened, lower-case, no full stop needed."""
    where: str = ""
    """`file:line: key`, a path, a ref or a command."""
    fix: str = ""
    """What to type or change next."""
    near: str | None = None
    """The name that was probably meant, when a name is unknown."""
    severity: Severity = "error"
    """Only errors stop a submit."""

    def line(self) -> str:
        """The finding as one line of text."""
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head} (fix: {self.fix})" if self.fix else head
