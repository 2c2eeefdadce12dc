"""Serves the FastMCP server of a folder over stdio, in a process of its own.

The real `mcp` package and the standard library are loaded before the folder is put on the path, so a folder called
`mcp` or a module called `math` shadows nothing; and what the folder's code prints goes to stderr, because stdout
carries the protocol.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

ENTRY_FILES = ("main.py", "server.py", "mcp_server.py", "app.py", "__init__.py")
ATTRIBUTES = ("mcp", "server", "app")
BOOT = "import sys; sys.path[:] = [p for p in sys.path if p]; from osmosis.sdk.mcp_host import main; main(sys.argv[1])"
"""Run with `python -c`: the current folder leaves the path before anything is imported."""


class _Stdout(io.TextIOBase):
    """`print` goes to stderr; `buffer` is the protocol's stream."""

    def __init__(self, protocol: io.BufferedWriter) -> None:
        self.buffer = protocol

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def main(source: str) -> None:
    """Serves the folder or file `source` until stdin closes; exits 1 with the reason on stderr."""
    protocol = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = _Stdout(protocol)
    try:
        server = find_server(Path(source))
    except LookupError as exc:
        sys.stderr.write(f"{exc}\n")
        raise SystemExit(1) from None
    except Exception as exc:  # noqa: BLE001 - the border of this process: the folder's code may raise anything
        sys.stderr.write(f"{_where(exc, Path(source))}{type(exc).__name__}: {exc}\n")
        raise SystemExit(1) from None
    server.run(transport="stdio", show_banner=False)


def _where(exc: Exception, source: Path) -> str:
    """`file:line: ` of the last frame inside the folder."""
    folder = str(source if source.is_dir() else source.parent)
    frames = [frame for frame in traceback.extract_tb(exc.__traceback__) if frame.filename.startswith(folder)]
    return f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""


def find_server(source: Path) -> Any:
    """The FastMCP server that `source` (a folder or a file) defines; `LookupError` when there is none."""
    from fastmcp import FastMCP

    folder = source if source.is_dir() else source.parent
    files = [source] if source.is_file() else [folder / name for name in ENTRY_FILES if (folder / name).is_file()]
    sys.path.insert(0, str(folder))
    try:
        for file in files or sorted(folder.glob("*.py")):
            found = _server_in(_load(file), FastMCP)
            if found is not None:
                return found
        inside = str(folder.resolve()) + os.sep
        for module in list(sys.modules.values()):
            if str(getattr(module, "__file__", None) or "").startswith(inside):
                found = _server_in(module, FastMCP)
                if found is not None:
                    return found
    finally:
        # Behind the installed packages from here on: what libraries import lazily is theirs, what tools import
        # lazily is still found.
        sys.path.remove(str(folder))
        sys.path.append(str(folder))
    raise LookupError(f"{source} defines no FastMCP server: write `mcp = FastMCP(...)` in {ENTRY_FILES[0]}")


def _load(file: Path) -> ModuleType:
    """As a top-level module of its own name, unless a library of that name is loaded already."""
    name = file.stem if file.stem not in sys.modules else f"_osmosis_mcp_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _server_in(module: ModuleType, kind: type) -> Any:
    named = [getattr(module, name, None) for name in ATTRIBUTES]
    return next((one for one in [*named, *list(vars(module).values())] if isinstance(one, kind)), None)
