"""The sandbox in which uv makes an environment: what the build backends of a rollout and of its dependencies may do.

They see no secret and nothing of `[env]`. At level 1 they read the checkout, write the environment that is being made
and a cache of the workspace's own, and reach package indexes through a proxy of ours (`index_proxy`) and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from osmosis.sandbox import Box, Level, Network, Policy
from osmosis.sandbox.bubblewrap import python_folders

from .boundary import Boundary
from .index_proxy import IndexProxy

PROXY = ("127.0.0.1", 7577)
TMP_MB = 4096
DEFAULT_HOSTS = frozenset({"pypi.org", "files.pythonhosted.org"})
_URL = re.compile(r"\b(?:https?|file)://[^\s\"',]+")


@dataclass(frozen=True, slots=True)
class BuildSandbox:
    """Level 0 unless made by `of`."""

    level: Level = Level.NONE
    source: Path | None = None
    uv_cache: Path | None = None
    configs: tuple[Path, ...] = ()
    """uv's own configuration of this machine."""
    proxy: IndexProxy | None = None

    @classmethod
    def of(
        cls, boundary: Boundary, source: Path, cache_dir: Path, environ: Mapping[str, str], workspace: str
    ) -> BuildSandbox:
        """For a job behind this boundary, whose checkout is `source`; `environ` is the machine's."""
        if boundary.level is Level.NONE:
            return cls()
        configs = tuple(path for path in _uv_configs(environ) if path.is_file())
        named = [*environ.values(), *(path.read_text(encoding="utf-8", errors="replace") for path in configs)]
        hosts = {urlsplit(url).hostname or "" for text in named for url in _URL.findall(text)} - {""}
        outside = boundary.network is not Network.NONE
        proxy = IndexProxy(frozenset(hosts | DEFAULT_HOSTS), outside=outside, environ=environ)
        uv_cache = cache_dir / "uv" / (workspace or "default")
        uv_cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        return cls(boundary.level, source, uv_cache, configs, proxy)

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """uv's variables: files are copied out of its cache, so that changing one changes nobody else's."""
        made = {**environ, "UV_LINK_MODE": "copy"}
        if self.level is Level.NONE:
            return made
        made = {name: value for name, value in made.items() if not name.lower().endswith("_proxy")}
        at = "http://{}:{}".format(*PROXY)
        made.update({name: at for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY")})
        made["XDG_CONFIG_HOME"] = environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        return {**made, "UV_CACHE_DIR": str(self.uv_cache)}

    @property
    def compiles(self) -> tuple[str, ...]:
        """Where rollouts cannot write beside what they import, it is compiled when it is installed."""
        return () if self.level is Level.NONE else ("--compile-bytecode",)

    def folders(self, uv: str, wheels: Path, python: Path, environ: Mapping[str, str]) -> tuple[Path, ...]:
        """What every build reads, besides what the policy is given."""
        if self.level is Level.NONE:
            return ()
        return (Path(uv), wheels, *python_folders(python), *_local_indexes(environ))

    def policy(self, *, read: tuple[Path, ...], write: tuple[Path, ...]) -> Policy:
        """The sandbox of one command."""
        if self.level is Level.NONE:
            return Policy()
        assert self.source is not None
        assert self.uv_cache is not None
        return Policy(
            level=self.level,
            network=Network.NONE,
            listen=(PROXY,),
            read=(self.source, *self.configs, *read),
            write=(*write, self.uv_cache),
            tmp_mb=TMP_MB,
        )

    @contextlib.asynccontextmanager
    async def proxied(self, box: Box) -> AsyncIterator[None]:
        """The proxy answers inside the box meanwhile."""
        listener = box.listeners.get(PROXY)
        if listener is None or self.proxy is None:
            yield
            return
        async with self.proxy.serving(listener):
            yield


def _uv_configs(environ: Mapping[str, str]) -> Iterator[Path]:
    yield Path("/etc/uv/uv.toml")
    yield Path(environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")) / "uv" / "uv.toml"


def _local_indexes(environ: Mapping[str, str]) -> Iterator[Path]:
    """Folders on this machine that the operator's settings name as an index or as find-links."""
    for name, value in environ.items():
        if not name.startswith("UV_") or not ("INDEX" in name or name == "UV_FIND_LINKS"):
            continue
        for one in re.split(r"[\s,]+", value):
            url = one.rpartition("=")[2] if "=file://" in one else one
            path = Path(url2pathname(urlsplit(url).path)) if url.startswith("file://") else Path(url)
            if path.is_absolute() and path.is_dir():
                yield path
