"""What each sandboxed process of a job gets of its run, of this machine and of the network."""

import contextlib
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from osmosis.errors import SandboxUnavailable
from osmosis.jobs.context import setup_failure
from osmosis.jobs.network import IndexProxy
from osmosis.records.run.job import JobSpec, ModelJob
from osmosis.records.sandbox import SandboxChoice, SandboxSettings
from osmosis.sandbox import Abilities, Box, Level, Limits, Network, Policy, probe
from osmosis.sandbox.bubblewrap import python_folders
from osmosis.sandbox.session import SessionKind, SessionLimits, choose_kind

MODEL_TMP_MB = 2048
GPUS = ("nvidia*", "kfd", "dri")
GATE = ("127.0.0.1", 7576)
"""Where a rollout finds its model endpoint, in a network of its own."""
COMMIT, ARTIFACTS, ENVIRONMENT, PROJECT = map(Path, ("/rollout", "/artifacts", "/environment", "/project"))


@dataclass(frozen=True, slots=True)
class ServerFolders:
    commit: Path
    artifacts: Path

    @classmethod
    def under(cls, folder: Path) -> "ServerFolders":
        return cls(folder / "rollout", folder / "artifacts")


@dataclass(frozen=True, slots=True)
class JobSandbox:
    level: Level
    network: Network
    description: str
    settings: SandboxSettings

    @classmethod
    def for_job(cls, spec: JobSpec, abilities: Abilities | None = None) -> "JobSandbox":
        settings, found_abilities = spec.sandbox, abilities or probe()
        gate_only = not isinstance(spec.config, ModelJob) and spec.config.advanced.network == "gate"
        try:
            if settings.required:
                found_abilities.require(Level.NAMESPACES)
        except SandboxUnavailable as problem:
            message = f"this platform runs rollouts in a sandbox only: {problem.message}"
            raise setup_failure(message, fix=problem.hint) from None
        level = Level.NONE if settings.off else found_abilities.level
        if level is Level.NONE and not settings.off and spec.secret_names:
            raise setup_failure(
                f"this run has secrets ({', '.join(spec.secret_names)}), and nothing keeps a rollout from the files of "
                f"this machine: {found_abilities.reason}",
                fix=f"{found_abilities.fix}; or allow it: osmosis platform start --no-sandbox",
            )
        if gate_only and level < Level.NAMESPACES:
            raise setup_failure(
                '[advanced] network = "gate" needs a sandbox with a network of its own, and this job has none: '
                + ("it is switched off on this platform" if settings.off else found_abilities.reason),
                fix='remove it, or run the platform where `osmosis doctor` says "sandbox: level 1"',
            )
        network = Network.SHARED
        if level >= Level.NAMESPACES:
            network = Network.NONE if gate_only else Network.OPEN if found_abilities.router else Network.SHARED
        return cls(level, network, _describe(level, network, found_abilities, settings), settings)

    def server_policy(
        self, folders: ServerFolders, python: Path, environment: Path, project: Path | None = None
    ) -> Policy:
        """Return the policy of a rollout server, in which no name tells where the platform has its files."""
        folders.artifacts.mkdir(parents=True, exist_ok=True)
        names = {folders.commit: COMMIT, folders.artifacts: ARTIFACTS, environment: ENVIRONMENT}
        if self.level is Level.NONE:
            return Policy(limits=self._limits(), write=(folders.artifacts,))
        return Policy(
            level=self.level,
            network=self.network,
            listen=(GATE, *self.settings.endpoints()) if self.level >= Level.NAMESPACES else (),
            read=(folders.commit, environment, *([project] if project else []), *python_folders(python)),
            write=(folders.artifacts,),
            names={**names, project: PROJECT} if project else names,
            tmp_mb=self.settings.tmp_mb,
            limits=self._limits(),
        )

    @classmethod
    def for_model(cls, spec: JobSpec) -> "JobSandbox":
        sandbox = cls.for_job(spec)
        if sandbox.level < Level.NAMESPACES:
            return replace(sandbox, description=sandbox.description.replace("a rollout", "the model's process"))
        description = f"{sandbox.level.label}; the model's process has no network and can read only its own files"
        return replace(sandbox, network=Network.NONE, description=description)

    @classmethod
    def for_trainer(cls, spec: JobSpec, *, elsewhere: bool) -> "JobSandbox":
        sandbox = cls.for_model(spec)
        if sandbox.level < Level.NAMESPACES or not elsewhere:
            return sandbox
        can = "the trainer can read only its own files and reaches the network for its server"
        return replace(sandbox, network=Network.SHARED, description=f"{sandbox.level.label}; {can}")

    def process_policy(self, python: Path, read: Sequence[Path], write: Sequence[Path]) -> Policy:
        if self.level is Level.NONE:
            return Policy()
        return Policy(
            level=self.level,
            network=self.network,
            devices=tuple(path for pattern in GPUS for path in sorted(Path("/dev").glob(pattern))),
            read=(*read, *python_folders(python), Path("/sys")),  # which GPUs and cores are near each other
            write=tuple(write),
            tmp_mb=MODEL_TMP_MB,
            shared_memory_mb=MODEL_TMP_MB,  # what the processes of several GPUs exchange
            unix_sockets=True,
        )

    def tool_sandbox_kind(self, request: SandboxChoice, python: Path, parent: Path) -> SessionKind:
        """Return what rollouts get for `ctx.sandbox`, beside the server. Raise `SandboxUnavailable`."""
        if request.kind == "container" or request.image:
            message = "on a platform ctx.sandbox is bubblewrap, not a container"
            raise SandboxUnavailable(message, hint="remove sandbox and sandbox_image from [advanced]")
        inside = self.level is not Level.NONE
        choice = SandboxChoice(kind="none" if request.kind == "none" and not inside else "auto")
        parent.mkdir(parents=True, exist_ok=True)
        own = SessionLimits()
        most = replace(own, memory_mb=min(own.memory_mb, self.settings.memory_mb or own.memory_mb))
        is_open = self.level < Level.NAMESPACES or self.network is Network.OPEN
        return choose_kind(choice, python=python, network=is_open, most=most, parent=parent)

    def _limits(self) -> Limits:
        return Limits(
            memory_mb=self.settings.memory_mb,
            processes=self.settings.processes,
            file_mb=self.settings.artifacts_mb,
            disk_mb=self.settings.artifacts_mb,
            cpus=self.settings.cpus,
            wall_s=self.settings.server_s,
            output_bytes=self.settings.output_mb * 1024 * 1024,
        )


def _describe(level: Level, network: Network, abilities: Abilities, settings: SandboxSettings) -> str:
    if level is Level.NONE:
        reason = "switched off on this platform" if settings.off else abilities.reason
        return f"level 0: nothing keeps a rollout from this machine's files and network ({reason})"
    if level is Level.LANDLOCK:
        return (
            f"Landlock ({abilities.version}): a rollout can open only its own files; network and processes are this "
            f"machine's ({abilities.reason})"
        )
    reach = {
        Network.NONE: "network gate: it reaches only its model endpoint",
        Network.OPEN: "network open: it reaches outside hosts, not this machine's or private addresses",
        Network.SHARED: "network shared with this machine: neither slirp4netns nor pasta is here",
    }[network]
    return f"{level.label} ({abilities.program}); {reach}"


PROXY = ("127.0.0.1", 7577)
TMP_MB = 4096
DEFAULT_HOSTS = frozenset({"pypi.org", "files.pythonhosted.org"})
_URL = re.compile(r"\b(?:https?|file)://[^\s\"',]+")


@dataclass(frozen=True, slots=True)
class BuildSandbox:
    level: Level = Level.NONE
    source: Path | None = None
    uv_cache: Path | None = None
    configs: tuple[Path, ...] = ()
    proxy: IndexProxy | None = None

    @classmethod
    def of(
        cls, boundary: JobSandbox, source: Path, cache_dir: Path, environ: Mapping[str, str], owner: str
    ) -> "BuildSandbox":
        if boundary.level is Level.NONE:
            return cls()
        confined_network = boundary.level >= Level.NAMESPACES
        folders = (Path("/etc"), Path(environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")))
        configs = tuple(path for folder in folders if (path := folder / "uv" / "uv.toml").is_file())
        named = [*environ.values(), *(path.read_text(encoding="utf-8", errors="replace") for path in configs)]
        hosts = {urlsplit(url).hostname or "" for text in named for url in _URL.findall(text)} - {""}
        outside = boundary.network is not Network.NONE
        allowed = frozenset(hosts | DEFAULT_HOSTS)
        proxy = IndexProxy(allowed, outside=outside, environ=environ) if confined_network else None
        uv_cache = cache_dir / "uv" / (owner or "default")
        uv_cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        return cls(boundary.level, source, uv_cache, configs, proxy)

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return uv's variables. Files are copied from its cache, so that changing one affects no other environment."""
        variables = {**environ, "UV_LINK_MODE": "copy"}
        if self.level is Level.NONE:
            return variables
        if self.proxy is not None:
            variables = {name: value for name, value in variables.items() if not name.lower().endswith("_proxy")}
            at = "http://{}:{}".format(*PROXY)
            names = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY")
            variables.update(dict.fromkeys(names, at))
        variables["XDG_CONFIG_HOME"] = environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        return {**variables, "UV_CACHE_DIR": str(self.uv_cache)}

    @property
    def compiles(self) -> tuple[str, ...]:
        """Compile at installation: rollouts cannot write beside what they import."""
        return () if self.level is Level.NONE else ("--compile-bytecode",)

    def folders(self, uv: str, wheels: Path, python: Path, environ: Mapping[str, str]) -> tuple[Path, ...]:
        if self.level is Level.NONE:
            return ()
        return (Path(uv), wheels, *python_folders(python), *_local_indexes(environ))

    def policy(
        self, *, read: tuple[Path, ...], write: tuple[Path, ...], names: Mapping[Path, Path] | None = None
    ) -> Policy:
        if self.level is Level.NONE:
            return Policy()
        assert self.source is not None
        assert self.uv_cache is not None
        return Policy(
            level=self.level,
            network=Network.NONE if self.proxy else Network.SHARED,
            listen=(PROXY,) if self.proxy else (),
            read=(self.source, *self.configs, *read),
            write=(*write, self.uv_cache),
            names=names or {},
            tmp_mb=TMP_MB,
        )

    @contextlib.asynccontextmanager
    async def proxied(self, box: Box) -> AsyncIterator[None]:
        listener = box.listeners.get(PROXY)
        if listener is None or self.proxy is None:
            yield
            return
        async with self.proxy.serving(listener):
            yield


def _local_indexes(environ: Mapping[str, str]) -> Iterator[Path]:
    for name, value in environ.items():
        if not name.startswith("UV_") or not ("INDEX" in name or name == "UV_FIND_LINKS"):
            continue
        for entry in re.split(r"[\s,]+", value):
            url = entry.rpartition("=")[2] if "=file://" in entry else entry
            path = Path(url2pathname(urlsplit(url).path)) if url.startswith("file://") else Path(url)
            if path.is_absolute() and path.is_dir():
                yield path
