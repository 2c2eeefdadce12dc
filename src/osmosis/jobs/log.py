"""The log of a job: every line is redacted here, once, and then handed to whoever listens.

Stages write with a step name (`checkout`, `uv`, `rollout-server`, ...). It keeps nothing and knows no platform.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from osmosis.records.run import LogLine

Level = Literal["debug", "info", "warning", "error"]
MAX_LINE = 8000


class JobLog:
    """Where stages write. `redact` removes secret values from a text; `sinks` receive each finished line."""

    def __init__(self, redact: Callable[[str], str] | None = None, *sinks: Callable[[LogLine], None]) -> None:
        self._redact = redact or (lambda text: text)
        self._sinks = list(sinks)

    def add_sink(self, sink: Callable[[LogLine], None]) -> None:
        self._sinks.append(sink)

    def write(self, step: str, message: str, level: Level = "info") -> None:
        """One line. Very long lines are cut, after redaction, so a cut never uncovers half a secret."""
        text = self._redact(message.rstrip("\n"))
        if len(text) > MAX_LINE:
            text = f"{text[:MAX_LINE]} ... ({len(text) - MAX_LINE} more characters)"
        line = LogLine(level=level, step=step, message=text)
        for sink in self._sinks:
            sink(line)

    def stream(self, step: str, level: Level = "info") -> Callable[[str], None]:
        """A callback that writes each line it is given under `step`."""
        return lambda line: self.write(step, line, level)
