"""The pages of some runs as files: what `osmosis view --export` writes, to be opened from a disk or any web server.

Walks the same pages as a server from the list of runs on, and writes those that need nobody to answer: figures, tables
page by page and by outcome, every rollout, comparisons. What a server is needed for (search, forms) is left out.
"""

from __future__ import annotations

import hashlib
import html
import os
import re
import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from urllib.parse import parse_qsl, urlsplit

from osmosis.base.files import write_bytes
from osmosis.errors import ValidationError

from . import site
from .asked import Asked
from .library import Library
from .render import STATIC
from .view import Document, View

_LINK = re.compile(r'\b(href|src)="([^"]*)"')
_LIVE = re.compile(r'\s(?:hx-[a-z:-]+)="[^"]*"')
_ROLLOUT = re.compile(r"^/runs/([^/]+)/rollouts/(\d+)/(\d+)(\.json)?$")
_RUN = re.compile(r"^/runs/([^/]+?)(/config|/rollouts/export\.csv|/rollouts/export\.json)?$")
_TABLE = re.compile(r"^/runs/([^/]+)/rollouts$")
_IN_TABLES = ("outcome", "agree", "at")
"""What may be asked of a table that is a file."""
MARK = ".osmosis-view"
"""Stands in a folder that was written by this, which may be written again."""


def write_site(library: Library, folder: Path, render: Callable[[View], str], written: Callable[[int], None]) -> int:
    """Writes every page below `folder`, with the files they need; how many pages that are. `written` is told so far.

    ValidationError when the folder holds something else.
    """
    _prepare(folder)
    shutil.copytree(STATIC, folder / "static")
    waiting, known = deque(["/"]), {"/"}
    count = 0
    while waiting:
        address = waiting.popleft()
        name = file_of(address)
        assert name is not None
        found = site.of_library(library, urlsplit(address).path, Asked(parse_qsl(urlsplit(address).query)))
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(found, Document):
            write_bytes(folder / name, b"".join(found.content))
        else:
            text, links = rewritten(render(found), address)
            waiting.extend(link for link in links if link not in known)
            known.update(links)
            write_bytes(folder / name, text.encode())
        count += 1
        written(count)
    return count


def _prepare(folder: Path) -> None:
    """An empty folder, or one that an earlier export filled."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not (folder / MARK).is_file():
            raise ValidationError(f"{folder} holds something else", hint="choose a new folder, or an earlier export")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).write_text("Written by osmosis view --export, which may replace this folder.\n")


def file_of(address: str) -> str | None:
    """The file of a page, from the folder of the export; None for what is left out."""
    parts = urlsplit(address)
    path, asked = parts.path.rstrip("/") or "/", dict(parse_qsl(parts.query))
    if path == "/":
        return "index.html"
    if path in ("/compare", "/compare/code"):
        kind = "code-" if path.endswith("code") else ""
        return f"compare/{kind}{hashlib.sha256(parts.query.encode()).hexdigest()[:12]}.html"
    if found := _ROLLOUT.match(path):
        step = f"{asked['step']}-" if "step" in asked else ""
        return f"runs/{_plain(found[1])}/rollouts/{step}{found[2]}-{found[3]}{found[4] or '.html'}"
    if found := _TABLE.match(path):
        asked = {name: value for name, value in asked.items() if value}
        if set(asked) - set(_IN_TABLES):
            return None
        first = asked.get("at") == "1"
        kept = [(name, asked[name]) for name in _IN_TABLES if name in asked and not (name == "at" and first)]
        tail = "".join(f"-{name}-{_plain(value)}" for name, value in kept)
        return f"runs/{_plain(found[1])}/rollouts{tail}.html"
    if found := _RUN.match(path):
        below = {None: "index.html", "/config": "config.html", "/rollouts/export.csv": "rollouts.csv"}
        return None if parts.query and found[2] else f"runs/{_plain(found[1])}/{below.get(found[2], 'rollouts.json')}"
    return None


def _plain(text: str) -> str:
    """As a part of a file's name, never one that leads elsewhere."""
    return re.sub(r"[^A-Za-z0-9._~-]", "-", text).lstrip(".") or "-"


def rewritten(text: str, address: str) -> tuple[str, list[str]]:
    """A page with links to files instead of addresses, and the addresses that it links to."""
    here = file_of(address) or ""
    path = urlsplit(address).path
    links: list[str] = []

    def link(found: re.Match[str]) -> str:
        to, hash_, fragment = html.unescape(found[2]).partition("#")
        if urlsplit(to).scheme or not (to or hash_):
            return found[0]
        if not to:
            return found[0]
        full = f"{path}{to}" if to.startswith("?") else to
        if full.startswith("/static/"):
            return f'{found[1]}="{_relative(urlsplit(full).path.lstrip("/"), here)}"'
        full = _kept(full)
        name = file_of(full)
        if name is None:
            return "data-left-out"
        links.append(full)
        return f'{found[1]}="{html.escape(_relative(name, here))}{hash_}{fragment}"'

    return _LINK.sub(link, _LIVE.sub("", text)), links


def _kept(address: str) -> str:
    """Without the filter that a rollout was found with: as a file, it is the same page."""
    parts = urlsplit(address)
    if not _ROLLOUT.match(parts.path):
        return address
    step = [value for name, value in parse_qsl(parts.query) if name == "step"]
    return parts.path + (f"?step={step[0]}" if step else "")


def _relative(to: str, here: str) -> str:
    return PurePosixPath(os.path.relpath(to, PurePosixPath(here).parent)).as_posix()
