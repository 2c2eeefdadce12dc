"""Import httpx without its own command line, which loads rich, pygments and click. It is a quarter of what `osmosis
whoami` takes: 0.65 s of CPU with it, 0.49 s without. It can still be imported later."""

import sys

if "httpx" not in sys.modules:
    sys.modules["httpx._main"] = None  # type: ignore[assignment]  # None keeps a module from being imported
    import httpx  # noqa: F401 - imported for what it loads

    del sys.modules["httpx._main"]
