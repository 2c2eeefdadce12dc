"""`osmosis view --export`: the pages of some runs as files, without what needs a server (search, forms)."""

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
from osmosis.viewer.page import STATIC, Document, Page, QueryParams
from osmosis.viewer.routes import build_page
from osmosis.viewer.run_source import Library

_LINK = re.compile(r'\b(href|src)="([^"]*)"')
_LIVE = re.compile(r'\s(?:hx-[a-z:-]+)="[^"]*"')
_ROLLOUT = re.compile(r"^/runs/([^/]+)/rollouts/(\d+)/(\d+)(\.json)?\Z")
_RUN = re.compile(r"^/runs/([^/]+?)(/config|/rollouts/export\.csv|/rollouts/export\.json)?\Z")
_TABLE = re.compile(r"^/runs/([^/]+)/rollouts\Z")
_TABLE_PARAMS = ("outcome", "agree", "at")
MARKER = ".osmosis-view"
"""The file that marks a folder as an export, which may be overwritten."""


def write_site(
    library: Library, folder: Path, render: Callable[[Page], str], on_progress: Callable[[int], None]
) -> int:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not (folder / MARKER).is_file():
            raise ValidationError(f"{folder} holds something else", hint="choose a new folder, or an earlier export")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).write_text("Written by osmosis view --export, which may replace this folder.\n")
    shutil.copytree(STATIC, folder / "static")
    waiting, addresses = deque(["/"]), {"/"}
    count = 0
    while waiting:
        address = waiting.popleft()
        name = page_file(address)
        assert name is not None
        page = build_page(library, urlsplit(address).path, QueryParams(parse_qsl(urlsplit(address).query)))
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(page, Document):
            write_bytes(folder / name, b"".join(page.content))
        else:
            text, links = rewrite_links(render(page), address)
            waiting.extend(link for link in links if link not in addresses)
            addresses.update(links)
            write_bytes(folder / name, text.encode())
        count += 1
        on_progress(count)
    return count


def page_file(address: str) -> str | None:
    parts = urlsplit(address)
    path, params = parts.path.rstrip("/") or "/", dict(parse_qsl(parts.query))
    if path == "/":
        return "index.html"
    if path in ("/compare", "/compare/code"):
        kind = "code-" if path.endswith("code") else ""
        return f"compare/{kind}{hashlib.sha256(parts.query.encode()).hexdigest()[:12]}.html"
    if match := _ROLLOUT.match(path):
        step = f"{params['step']}-" if "step" in params else ""
        return f"runs/{_file_name(match[1])}/rollouts/{step}{match[2]}-{match[3]}{match[4] or '.html'}"
    if match := _TABLE.match(path):
        params = {name: value for name, value in params.items() if value}
        if set(params) - set(_TABLE_PARAMS):
            return None
        if params.get("at") == "1":
            del params["at"]
        tail = "".join(f"-{name}-{_file_name(params[name])}" for name in _TABLE_PARAMS if name in params)
        return f"runs/{_file_name(match[1])}/rollouts{tail}.html"
    if match := _RUN.match(path):
        files = {None: "index.html", "/config": "config.html", "/rollouts/export.csv": "rollouts.csv"}
        file = files.get(match[2], "rollouts.json")
        return None if parts.query and match[2] else f"runs/{_file_name(match[1])}/{file}"
    return None


def _file_name(text: str) -> str:
    """Return the text as a part of a file's name, never one that leads to another folder."""
    return re.sub(r"[^A-Za-z0-9._~-]", "-", text).lstrip(".") or "-"


def rewrite_links(text: str, address: str) -> tuple[str, list[str]]:
    file = page_file(address) or ""
    path = urlsplit(address).path
    links: list[str] = []

    def rewrite(match: re.Match[str]) -> str:
        target, hash_, fragment = html.unescape(match[2]).partition("#")
        if not target or urlsplit(target).scheme:
            return match[0]
        target = f"{path}{target}" if target.startswith("?") else target
        if target.startswith("/static/"):
            return f'{match[1]}="{_relative(urlsplit(target).path.lstrip("/"), file)}"'
        target = _drop_filter(target)
        name = page_file(target)
        if name is None:
            return "data-left-out"
        links.append(target)
        return f'{match[1]}="{html.escape(_relative(name, file))}{hash_}{fragment}"'

    return _LINK.sub(rewrite, _LIVE.sub("", text)), links


def _drop_filter(address: str) -> str:
    parts = urlsplit(address)
    if not _ROLLOUT.match(parts.path):
        return address
    step = [value for name, value in parse_qsl(parts.query) if name == "step"]
    return parts.path + (f"?step={step[0]}" if step else "")


def _relative(target: str, file: str) -> str:
    return PurePosixPath(os.path.relpath(target, PurePosixPath(file).parent)).as_posix()
