"""A program as the engine's agent: `claude`, `codex`, or any script that asks a model over HTTP. Each rollout has a
folder, a HOME of its own, a sandbox without a network but this rollout's endpoint, and a key that only it knows. What
it printed, its exit status and the files that it changed are results for graders (`info["command"]`). Programs may also
speak the Agent Client Protocol, version 1 (agentclientprotocol.com): JSON-RPC, a message a line, on stdin and stdout,
one session and one prompt; what the program asks to do in its sandbox is allowed, files and terminals are absent."""

import asyncio
import difflib
import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import orjson

from osmosis._version import __version__
from osmosis.base.files import tomllib
from osmosis.base.jsonable import JsonObject
from osmosis.base.paths import folder_inside
from osmosis.base.safe_open import folder_at, is_plain, walk
from osmosis.engine.agent import Agent
from osmosis.engine.rollout_model import RolloutModel, add_info, build_rollout
from osmosis.engine.task import Task
from osmosis.errors import SandboxUnavailable, ValidationError
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.rollout import Category, Failure, Message, Phase, Rollout
from osmosis.records.run.rows import Row
from osmosis.sandbox import Box, Level, Limits, Network, Policy, start
from osmosis.sandbox.namespaces import SYSTEM, python_folders
from osmosis.sandbox.policy import WORK
from osmosis.sandbox.session import Session, SessionKind, choose_kind
from osmosis.serve.client.model_proxy import ModelProxy
from osmosis.serve.client.rollout_endpoint import RolloutEndpoint

SERVERS_FILE = ".mcp.json"
FINISH_REASONS: Mapping[object, str | None] = {
    "end_turn": None,
    "max_tokens": "length",
    "max_turn_requests": "max_turns",
}
"""Stop reasons in the words of rollouts, where the model's own does not do; others are the same in both."""
UNATTENDED = ("bypassPermissions", "agent-full-access", "full-access", "yolo", "auto-approve")
_HELLO: JsonObject = {
    "protocolVersion": 1,
    "clientCapabilities": {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False},
    "clientInfo": {"name": "osmosis", "version": __version__},
}
_NO_METHOD: JsonObject = {"error": {"code": -32601, "message": "this client has no such method"}}


class AcpError(Exception):
    """The program answered a request with an error, or did not answer."""


@dataclass
class AcpClient:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    pieces: list[str] = field(default_factory=list)
    _last_id: int = 0

    async def prompt(self, text: str, folder: str, servers: list[JsonObject]) -> str:
        spoken = (await self._ask("initialize", _HELLO)).get("protocolVersion")
        if spoken != 1:
            raise AcpError(f"it speaks version {spoken} of the protocol, not 1")
        session = await self._ask("session/new", {"cwd": folder, "mcpServers": servers})
        params, modes = {"sessionId": session.get("sessionId")}, (session.get("modes") or {}).get("availableModes")
        for mode in [mode["id"] for mode in modes or () if mode.get("id") in UNATTENDED][:1]:
            await self._ask("session/set_mode", {**params, "modeId": mode})
        end = await self._ask("session/prompt", {**params, "prompt": [{"type": "text", "text": text}]})
        return str(end.get("stopReason"))

    async def _ask(self, method: str, params: JsonObject) -> JsonObject:
        self._last_id += 1
        await self._send({"id": self._last_id, "method": method, "params": params})
        async for message in self._messages():
            if "method" in message:
                await self._take(message["method"], message.get("id"), message.get("params") or {})
            elif error := message.get("error"):
                raise AcpError(f"{method}: {error.get('message')} {error.get('data') or ''}".strip())
            elif message.get("id") == self._last_id:
                return message.get("result") or {}
        raise AcpError(f"{method}: the program ended without an answer")

    async def _send(self, message: JsonObject) -> None:
        self.writer.write(orjson.dumps({"jsonrpc": "2.0", **message}) + b"\n")
        with suppress(OSError):  # it has ended: the next read says so
            await self.writer.drain()

    async def _messages(self) -> AsyncIterator[JsonObject]:
        line = b"\n"
        while line:
            with suppress(ValueError):
                line = await self.reader.readline()
                if isinstance(message := orjson.loads(line), dict):
                    yield message

    async def _take(self, method: str, number: object, params: JsonObject) -> None:
        update = params.get("update") or {}
        if method == "session/request_permission":
            chosen = sorted(params.get("options") or (), key=lambda option: option.get("kind", ""))
            allowed = [option["optionId"] for option in chosen if option.get("kind", "").startswith("allow")]
            outcome = {"outcome": "selected", "optionId": allowed[0]} if allowed else {"outcome": "cancelled"}
            await self._send({"id": number, "result": {"outcome": outcome}})
        elif number is not None:
            await self._send({"id": number, **_NO_METHOD})
        elif update.get("sessionUpdate") == "agent_message_chunk":
            self.pieces.append(str(update["content"].get("text", "")))
        elif update.get("sessionUpdate") == "tool_call":
            self.pieces.append("\n")


def read_servers(*folders: Session) -> list[JsonObject]:
    """Return the MCP servers of each folder's `.mcp.json` in the protocol's words; a later folder's win. Raise
    `ValidationError` for a file that is not one of MCP servers."""
    servers: dict[str, JsonObject] = {}
    for folder in folders:
        if (folder.folder / SERVERS_FILE).exists():
            try:
                table = orjson.loads(folder.read(SERVERS_FILE))["mcpServers"]
                servers |= {name: _server(name, server) for name, server in table.items()}
            except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as problem:
                hint = '{"mcpServers": {"NAME": {"command": "PROGRAM", "args": []}}}'
                raise ValidationError(
                    f"{SERVERS_FILE} has no table of MCP servers: {problem!r}", hint=hint
                ) from problem
    return list(servers.values())


def _server(name: str, server: JsonObject) -> JsonObject:
    key = "headers" if "url" in server else "env"
    pairs = [{"name": name, "value": value} for name, value in (server.get(key) or {}).items()]
    if "url" in server:
        return {"type": server.get("type", "http"), "name": name, "url": server["url"], key: pairs}
    return {"name": name, "command": server["command"], "args": server.get("args", []), key: pairs}


@dataclass(frozen=True, slots=True)
class Harness:
    command: str
    acp: str = ""  # The command of it that speaks the Agent Client Protocol: `acp:NAME`
    use: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    is_acp: bool = False


def load_harnesses() -> dict[str, Harness]:
    table = tomllib.loads(Path(__file__).with_name("harnesses.toml").read_text(encoding="utf-8"))
    return {name: Harness(**fields) for name, fields in table.items()}


def find_harness(command: str) -> Harness:
    words = command.strip()
    program = re.sub(r'^("?)acp:', r"\1", words)
    ready = load_harnesses().get(program)
    if program == words:
        return ready or Harness(command)
    if ready is None:
        return Harness(program, is_acp=True)
    if not ready.acp:
        speakers = ", ".join(f"acp:{name}" for name, harness in load_harnesses().items() if harness.acp)
        raise ValidationError(f"{program} does not speak the Agent Client Protocol", hint=f"{program}, or {speakers}")
    return replace(ready, command=ready.acp, is_acp=True)


def program_folders(command: str, search_path: str) -> tuple[Path, ...]:
    folders: dict[Path, None] = {}
    words = [word.strip("\"'") for word in command.split()]
    for word in [*words[:1], "node", "python3", *(word for word in words[1:] if "/" in word)]:
        program = shutil.which(word, path=search_path)
        if program is None:
            continue
        for path in (Path(program), Path(program).resolve()):
            if not str(path).startswith(SYSTEM):
                folders |= dict.fromkeys((*python_folders(path), _installation(path)))
    return tuple(path for path in folders if path.is_dir())


def _installation(program: Path) -> Path:
    modules = [parent for parent in program.parents if parent.name == "node_modules"]
    if modules:
        return modules[-1]
    prefix = program.parent.parent
    is_shared = prefix.name == ".local" or Path.home().is_relative_to(prefix)
    return program.parent if is_shared else prefix


GATE = ("127.0.0.1", 8642)
HOME = Path("/home/agent")
ENDS_WITHIN_S = 5.0  # how long a program may take to end after its last answer over the Agent Client Protocol
OUTPUT_BYTES = 256 * 1024  # bytes of stdout and stderr each, from their ends
TEXT_BYTES, TEXTS_BYTES = 64 * 1024, 512 * 1024  # Bytes of each changed file, and of all together, that graders get


async def _read_end(stream: asyncio.StreamReader) -> str:
    data, is_cut = b"", ""
    while part := await stream.read(65536):
        data += part
        if len(data) > OUTPUT_BYTES:
            data, is_cut = data[-OUTPUT_BYTES:], "[...]\n"
    return is_cut + data.decode("utf-8", "replace")


class ProgramAgent:
    def __init__(
        self, plan: EvalPlan, proxy: ModelProxy, base_dir: Path, environ: Mapping[str, str], *, memory_mb: int = 8192
    ) -> None:
        choice, command = plan.sandbox, plan.agent.removeprefix("command:")
        if choice.kind == "container" or choice.image:
            raise SandboxUnavailable(
                "a program agent runs in namespaces, not in a container", hint="--sandbox auto, bubblewrap or none"
            )
        self._program = plan.program
        self._harness = find_harness(command)
        self._proxy = proxy
        self._base_dir = base_dir
        self._level = choose_kind(choice).level
        self._variables = environ
        self._path = environ.get("PATH", os.defpath)
        self._limits = Limits(memory_mb=memory_mb, processes=1024, file_mb=1024, disk_mb=4096)
        self._templates = plan.program.folders(base_dir)

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        outer = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="osmosis-program-"))
        try:
            work, home = outer / "work", outer / "home"
            session = await asyncio.to_thread(self._prepare, task.row, work, home)
            before = await asyncio.to_thread(_read_texts, session)
            endpoint = self._proxy.open_rollout(task.rollout_id, model=model)
            endpoint.overrides_sampling = True
            task.enter("agent")
            began = time.monotonic()
            try:
                async with self._started(task, endpoint, work, home) as box:
                    if self._harness.is_acp:
                        result = await self._prompt(task.row, box, session, home)
                    else:
                        out, err = await asyncio.gather(_read_end(box.stdout), _read_end(box.stderr))
                        result = {"exit_code": await box.wait(), "stdout": out, "stderr": err}
                result["seconds"] = round(time.monotonic() - began, 3)
                result["over_limit"] = box.over_limit and box.over_limit.value
                result.update(await asyncio.to_thread(_changes, before, session))
                return _build(task, model, endpoint, result)
            finally:
                self._proxy.close_rollout(endpoint)
        finally:
            await asyncio.to_thread(shutil.rmtree, outer, ignore_errors=True)

    @asynccontextmanager
    async def _started(self, task: Task, endpoint: RolloutEndpoint, work: Path, home: Path) -> AsyncIterator[Box]:
        is_apart = self._level >= Level.NAMESPACES
        endpoint.base_url = f"http://{GATE[0]}:{GATE[1]}" if is_apart else self._proxy.base_url
        marks = {"@URL@": endpoint.prefix, "@KEY@": endpoint.bearer, "@MODEL@": self._proxy.model.spec.name}
        files = {
            name: re.sub("@URL@|@KEY@|@MODEL@", lambda mark: marks[mark[0]], text)
            for name, text in self._harness.files.items()
        }
        await asyncio.to_thread(_write_files, home, {**files, ".prompt": prompt_of(task.row)}, "program.home")
        policy = Policy(
            level=self._level,
            work=work,
            write=(home,),
            names={home: HOME} if is_apart else {},
            read=program_folders(self._harness.command, self._path),
            listen=(GATE,) if is_apart else (),
            network=Network.NONE,
            limits=self._limits,
        )
        inside = policy.inside(home)
        policy = replace(policy, environ=self._environ(task.row, endpoint))
        # HOME is the sandbox's own business, and this one is the program's.
        script = f'HOME="{inside}" PROMPT_FILE="{inside}/.prompt"; export HOME PROMPT_FILE\n{self._harness.command}\n'
        box = await start(["/bin/sh", "-c", script], policy, stderr_apart=True, stdin=self._harness.is_acp)
        try:
            async with self._proxy.inside(box.listeners.get(GATE)):
                yield box
        finally:
            await box.close()

    async def _prompt(self, row: Row, box: Box, work: Session, home: Path) -> JsonObject:
        client, folder = AcpClient(box.stdout, box.stdin), WORK if self._level >= Level.NAMESPACES else str(work.folder)
        result: JsonObject = {"exit_code": 0}
        servers = await asyncio.to_thread(read_servers, Session(work.kind, folder=home), work)
        errors = asyncio.create_task(_read_end(box.stderr))
        try:
            result["stop_reason"] = await client.prompt(prompt_of(row), folder, servers)
        except (AcpError, AttributeError, LookupError, TypeError) as problem:  # it may write anything
            result.update(exit_code=1, error=str(problem))
        box.stdin.close()
        await asyncio.wait([errors], timeout=ENDS_WITHIN_S)  # its stderr ends with it
        box.kill()
        return {**result, "stdout": "".join(client.pieces).strip()[-OUTPUT_BYTES:], "stderr": await errors}

    def _environ(self, row: Row, endpoint: RolloutEndpoint) -> dict[str, str]:
        prefix, key, variables = endpoint.prefix, endpoint.bearer, self._variables
        named = {name: variables[name] for name in self._program.environ if name in variables}
        return {
            "PATH": self._path,
            "LANG": "C.UTF-8",
            **self._harness.environ,
            **named,
            "PROMPT": prompt_of(row),
            "MODEL": self._proxy.model.spec.name,
            "OPENAI_BASE_URL": f"{prefix}/v1",
            "OPENAI_API_BASE": f"{prefix}/v1",
            "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": prefix,
            "ANTHROPIC_API_KEY": key,
            "GOOGLE_GEMINI_BASE_URL": prefix,
            "GEMINI_API_KEY": key,
        }

    def _prepare(self, row: Row, work: Path, home: Path) -> Session:
        for folder, key in ((work, "folder"), (home, "home")):
            if template := self._templates.get(key):
                shutil.copytree(template, folder, symlinks=True)
            else:
                folder.mkdir()
        if ref := row.data.get("git_ref"):
            _extract_ref(self._base_dir, str(ref), work)
        files, key = row.data.get("files") or {}, f"row {row.index}: files"
        if isinstance(files, str):
            source = folder_inside(self._base_dir, files, key)
            for path in source.rglob("*"):
                entry = work / path.relative_to(source)
                if entry.is_symlink() or (path.is_symlink() and entry.is_file()):
                    entry.unlink()
            shutil.copytree(source, work, symlinks=True, dirs_exist_ok=True)
            files = {}
        if not isinstance(files, dict):
            raise ValidationError(f"{key} must be an object of texts by path, or a folder", hint="see docs/agents.md")
        _open_to_all(work, home)
        return _write_files(work, files, key)


@dataclass(frozen=True, slots=True)
class GradedProgram:
    program: Agent
    grading: Agent

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        rollout = await self.program.run(task, model)
        if rollout.failure is not None:
            return rollout
        graded = await grade_ended(self.grading, rollout, task, model)
        rollout.status, rollout.failure, rollout.scores = graded.status, graded.failure, graded.scores
        rollout.metrics.update(graded.metrics)
        return rollout


async def grade_ended(grading: Agent, rollout: Rollout, task: Task, model: RolloutModel) -> Rollout:
    task.enter(Phase.SCORE.value)
    row = task.row
    metadata = {**(row.data if row.metadata is None else row.metadata)}
    if "command" in rollout.info:
        metadata["command"] = rollout.info["command"]
    data: JsonObject = {"messages": rollout.messages, "ground_truth": row.ground_truth, "metadata": metadata}
    return await grading.run(replace(task, row=replace(row, data=data)), model)


def prompt_of(row: Row) -> str:
    texts = [message.get("content") for message in row.messages() if message.get("role") in ("system", "user")]
    return "\n\n".join(text for text in texts if isinstance(text, str))


def _build(task: Task, model: RolloutModel, endpoint: RolloutEndpoint, result: JsonObject) -> Rollout:
    answered = any(call.error is None for call in model.calls)
    messages: list[Message] | None = None
    if not model.messages:
        messages = [*task.row.messages(), {"role": "assistant", "content": str(result["stdout"])}]
    failure = None
    code = result["exit_code"]
    if code in (126, 127) or (code != 0 and (not answered or model.error is not None)) or result["over_limit"]:
        last = next((line for line in reversed(str(result["stderr"]).splitlines()) if line.strip()), "")
        reason = f"an error of the protocol ({result['error']})" if "error" in result else f"exit status {code}"
        reason = f"over its limit of {result['over_limit']}" if result["over_limit"] else reason
        failure = Failure(
            phase=Phase.AGENT,
            category=Category.AGENT_ERROR,
            message=f"the program ended with {reason}{': ' if last else ''}{last[:500]}",
            fix="run the command by hand; info.command has its output",
        )
    stop = result.get("stop_reason")
    rollout = build_rollout(task, model, messages, failure=failure, finish_reason=FINISH_REASONS.get(stop, stop))
    purposes = Counter(call.purpose for call in model.calls if call.purpose)
    gate: JsonObject = {
        "left_out": sorted(endpoint.left_out),
        "overridden": endpoint.overridden,
        "calls": dict(sorted(purposes.items())),
    }
    add_info(rollout, {"command": {**result, **{key: value for key, value in gate.items() if value}}})
    rollout.metrics["exit_code"] = float(code)
    return rollout


def _write_files(folder: Path, files: Mapping[str, object], key: str) -> Session:
    session = Session(SessionKind(Level.NONE), folder=folder)
    for path, text in files.items():
        try:
            session.write(path, str(text).encode())
        except ValidationError as problem:
            raise ValidationError(f"{key}: {problem.message}", hint="no part of it may be .. or a link") from problem
    return session


def _open_to_all(*folders: Path) -> None:
    """Let the sandbox's user change what is ours: it is another one where we are root."""
    for folder in folders:
        for path in (folder, *folder.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o777 if path.is_dir() or os.access(path, os.X_OK) else 0o666)


def _extract_ref(repository: Path, ref: str, work: Path) -> None:
    if ref.startswith("-"):
        raise ValidationError(f"git_ref {ref!r} is no ref")
    command = ["git", "-C", str(repository), "archive", "--format=tar", ref]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        reason = done.stderr.decode("utf-8", "replace").strip()
        raise ValidationError(f"git_ref {ref!r} cannot be read: {reason}", hint=f"git -C {repository} rev-parse {ref}")
    try:
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as files:
            files.extractall(work, filter="data")
    except tarfile.TarError as problem:
        raise ValidationError(f"git_ref {ref!r} cannot be extracted: {problem}") from problem


def _read_texts(session: Session) -> dict[str, str | None]:
    texts: dict[str, str | None] = {}
    with folder_at(session.folder, ()) as folder:
        files = [(path, about.st_size) for path, about in walk(folder, 10_000) if is_plain(about)]
    for path, size in sorted(files):
        if any(part in f"{path}/" for part in (".git/", "node_modules/", "__pycache__/", ".venv/")):
            continue
        try:
            content = session.read(path) if size <= TEXT_BYTES else b"\0"
            texts[path] = None if b"\0" in content else content.decode()
        except (ValidationError, UnicodeDecodeError):
            texts[path] = None
    return texts


def _changes(before: Mapping[str, str | None], session: Session) -> JsonObject:
    after = _read_texts(session)
    diff, changed, room = [], {}, TEXTS_BYTES
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path, ""), after.get(path, "")
        if old == new and (path in before) == (path in after):
            continue
        if old is None or new is None:
            diff.append(f"Binary or large file {path} differs\n")
            continue
        names = (f"a/{path}" if path in before else "/dev/null", f"b/{path}" if path in after else "/dev/null")
        diff += difflib.unified_diff(old.splitlines(True), new.splitlines(True), *names)
        if path in after and len(new) <= room:
            changed[path], room = new, room - len(new)
    return {"diff": "".join(diff)[:TEXTS_BYTES], "files": changed}
