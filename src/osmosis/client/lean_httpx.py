"""httpx without what costs time on import and is used by nobody here: its command line (rich, pygments and click,
250 ms) and HTTP/2 where `h2` is installed. Both can still be imported afterwards.
"""

from __future__ import annotations

import sys

_UNUSED = [name for name in ("httpx._main", "h2") if name not in sys.modules]
sys.modules.update(dict.fromkeys(_UNUSED))  # type: ignore[arg-type]  # None keeps a module from being imported
import httpcore  # noqa: E402, F401 - httpx imports it with the first client
import httpx  # noqa: E402 - as above

for _name in _UNUSED:
    del sys.modules[_name]

__all__ = ["httpx"]
