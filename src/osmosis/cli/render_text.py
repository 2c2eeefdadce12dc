"""Times as people say them. Imports nothing, so command modules may use it freely."""

from __future__ import annotations

from datetime import datetime
from typing import Any


def when(value: Any) -> str:
    """An ISO time as a short local one."""
    try:
        parsed = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        return str(value or "")
    return parsed.astimezone().strftime("%Y-%m-%d %H:%M")
