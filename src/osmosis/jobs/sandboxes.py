"""The sandboxes of a job's processes: its files, this machine's programs, package indexes and allowed endpoints."""

import asyncio
import base64
import contextlib
import functools
import os
import re
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import url2pathname

from osmosis.base.net import is_loopback
from osmosis.errors import SandboxUnavailable
from osmosis.jobs.context import setup_failure
from osmosis.records.run.job import JobSpec, ModelJob
from osmosis.records.sandbox import SandboxChoice, SandboxSettings
from osmosis.sandbox import Abilities, Box, Level, Limits, Network, Policy, probe
from osmosis.sandbox.namespaces import python_folders
from osmosis.sandbox.network import is_outside
from osmosis.sandbox.session import SessionKind, SessionLimits, choose_kind

HEAD_S = 30.0
CONNECT_S = 30.0
PLAIN = {"http": 80, "https": 443}


class Refusal(Exception):
    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class IndexProxy:
    """`hosts` are always allowed, others when `outside`. `environ` names the proxy in front of this one."""

    hosts: frozenset[str]
    outside: bool
    environ: Mapping[str, str]

    @contextlib.asynccontextmanager
    async def serving(self, listener: socket.socket) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._answer, sock=listener.dup())
        try:
            yield
        finally:
            server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with (
            contextlib.closing(writer),
            contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.TimeoutError),
        ):
            try:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_S)
                far, first = await self._connected(head)
            except Refusal as problem:
                writer.write(f"HTTP/1.1 {problem.status}\r\nContent-Length: 0\r\nX-Reason: {problem}\r\n\r\n".encode())
                await writer.drain()
                return
            except asyncio.LimitOverrunError:
                return
            with contextlib.closing(far[1]):
                if first:
                    far[1].write(first)
                else:
                    writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
                await pump_both((reader, writer), far)

    async def _connected(self, head: bytes) -> "tuple[Stream, bytes]":
        line, _, rest = head.partition(b"\r\n")
        method, _, target = line.decode("latin-1").rpartition(" ")[0].partition(" ")
        if method == "CONNECT":
            url = urlsplit(f"//{target}", scheme="https")
            return await self._to(url, tunnel=True), b""
        url = urlsplit(target)
        if url.scheme != "http":
            raise Refusal("400 Bad Request", "CONNECT or an http:// URL is needed")
        path = f"{url.path or '/'}{'?' + url.query if url.query else ''}"
        fields = [
            field
            for field in rest.split(b"\r\n")
            if field and not field.lower().startswith((b"proxy-", b"connection:"))
        ]
        request = [f"{method} {path} HTTP/1.1".encode("latin-1"), *fields, b"Connection: close", b"", b""]
        return await self._to(url, tunnel=False), b"\r\n".join(request)

    async def _to(self, url: SplitResult, *, tunnel: bool) -> "Stream":
        try:
            host, port = (url.hostname or "").lower(), url.port or PLAIN[url.scheme]
        except ValueError as problem:
            raise Refusal("400 Bad Request", "the port is not a number") from problem
        ours = host in self.hosts
        if not ours and not self.outside:
            raise Refusal("403 Forbidden", f"{host} is not an index of this platform, and the run reaches nothing else")
        if upstream := self._upstream(host, "https" if tunnel else "http"):
            if not ours and not is_outside_name(host):
                raise Refusal("403 Forbidden", f"{host} is not an outside host")
            reader, writer = await _connect(upstream.hostname or "", upstream.port or PLAIN.get(upstream.scheme, 80))
            request = f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n"
            if upstream.username is not None:
                login = f"{unquote(upstream.username)}:{unquote(upstream.password or '')}"
                request += f"Proxy-Authorization: Basic {base64.b64encode(login.encode()).decode()}\r\n"
            writer.write(f"{request}\r\n".encode())
            answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), CONNECT_S)
            if answer.split(b" ", 2)[1:2] != [b"200"]:
                writer.close()
                raise Refusal("502 Bad Gateway", "the proxy of this machine refused")
            return reader, writer
        addresses = await self._addresses(host, port)
        if not ours:
            addresses = [address for address in addresses if is_outside(address)]
        if not addresses:
            raise Refusal("403 Forbidden", f"{host} is not an outside host")
        return await _connect(addresses[0], port)

    async def _addresses(self, host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        try:
            addresses = await asyncio.wait_for(loop.getaddrinfo(host, port, type=socket.SOCK_STREAM), CONNECT_S)
        except (OSError, asyncio.TimeoutError, UnicodeError) as problem:
            raise Refusal("502 Bad Gateway", f"{host} cannot be resolved") from problem
        return [str(address[0]) for *_, address in addresses]

    def _upstream(self, host: str, scheme: str) -> SplitResult | None:
        lower = {name.lower(): value for name, value in self.environ.items() if value}
        named = lower.get(f"{scheme}_proxy") or lower.get("all_proxy")
        spared = [name.strip().lstrip(".") for name in lower.get("no_proxy", "").split(",") if name.strip()]
        if (
            not named
            or is_loopback(host)
            or any(name == "*" or host == name or host.endswith(f".{name}") for name in spared)
        ):
            return None
        return urlsplit(named if "://" in named else f"http://{named}")


def is_outside_name(host: str) -> bool:
    """Return whether a name that is resolved elsewhere may be an outside host; literal addresses are checked."""
    try:
        return is_outside(host)
    except ValueError:
        return not is_loopback(host)


async def _connect(host: str, port: int) -> "Stream":
    try:
        return await asyncio.wait_for(asyncio.open_connection(host, port), CONNECT_S)
    except (OSError, asyncio.TimeoutError) as problem:
        raise Refusal("502 Bad Gateway", f"{host}:{port} cannot be reached") from problem


CHUNK = 65536
RELAY_CONNECT_S = 10.0


@contextlib.asynccontextmanager
async def relayed(listeners: Mapping[tuple[str, int], socket.socket]) -> AsyncIterator[None]:
    servers: list[asyncio.Server] = []
    try:
        for (host, port), listener in listeners.items():
            servers.append(await asyncio.start_server(functools.partial(relay, host, port), sock=listener.dup()))
        yield
    finally:
        for server in servers:
            server.close()


async def relay(host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.closing(writer):
        try:
            far_reader, far_writer = await asyncio.wait_for(asyncio.open_connection(host, port), RELAY_CONNECT_S)
        except (OSError, asyncio.TimeoutError):
            return  # the caller sees a closed connection, as of a server that is not there
        with contextlib.closing(far_writer):
            await pump_both((reader, writer), (far_reader, far_writer))


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def pump_both(first: Stream, other: Stream) -> None:
    await asyncio.gather(_pump(first[0], other[1]), _pump(other[0], first[1]))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while part := await reader.read(CHUNK):
            writer.write(part)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


MODEL_TMP_MB = 2048
GPUS = ("nvidia*", "kfd", "dri")
GATE = ("127.0.0.1", 7576)  # Where a rollout finds its model endpoint, in a network of its own
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
