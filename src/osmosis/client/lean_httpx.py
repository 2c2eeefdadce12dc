"""httpx without its command line, which costs 250 ms (rich, pygments, click) on import and is used by nobody here."""

from __future__ import annotations

import sys

sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
import httpx  # noqa: E402

if sys.modules["httpx._main"] is None:
    del sys.modules["httpx._main"]

__all__ = ["httpx"]
