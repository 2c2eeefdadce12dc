import logging
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import ValidationError as PydanticError
from pydantic_core import ErrorDetails
from typer import Argument, Option

from osmosis.base import paths
from osmosis.base.files import tomllib
from osmosis.base.hardware import TRAINER_PYTHON, find_python
from osmosis.base.jsonable import without_none
from osmosis.base.processes import on_stop
from osmosis.cli.core import prompts
from osmosis.cli.core.app import new_app, takes
from osmosis.cli.core.context import current
from osmosis.cli.core.results import Column, ListResult, NextStep, OperationResult, build_columns, when
from osmosis.client.http import CA_FILE, check_ca_file
from osmosis.errors import UsageError, ValidationError
from osmosis.records.config.worker import ExecutorName, GateAddress, WorkerConfig
from osmosis.records.sandbox import SandboxSettings
from osmosis.sandbox import Level, probe
from osmosis.worker.executors import executor_for
from osmosis.worker.loop import HttpPlatformApi, Worker, WorkerPlan

TOKEN_VARIABLE = "OSMOSIS_WORKER_TOKEN"
app = new_app(
    help="""Machines that run jobs for a platform: start, list, delete.

    On the platform's machine:
        osmosis token create gpu-box --scope worker > worker.token

    On the machine that is to work, with that file:
        osmosis worker start --platform-url https://osmosis.example.com --token-file worker.token
    """
)

AdvertiseUrl = Annotated[
    str | None,
    Option(help="URL at which rollout servers elsewhere reach training jobs; {port} is their port", hidden=True),
]
RequireSandbox = Annotated[bool, Option(help="Fail jobs where rollouts cannot run in a sandbox")]
SandboxAllow = Annotated[
    list[str] | None,
    Option(help="host:port that rollouts may reach on this machine or in its network; may be repeated", hidden=True),
]
GateListen = Annotated[
    str | None,
    Option(help="host:port where training jobs listen for rollout servers [default: 127.0.0.1:0]", hidden=True),
]


@dataclass(frozen=True)
class WorkerFlags:
    token_file: Annotated[Path | None, Option(help=f"File with its token [default: variable {TOKEN_VARIABLE}]")] = None
    platform_url: Annotated[str | None, Option(help="The platform's https:// URL [default: --platform's]")] = None
    ca_file: Annotated[Path | None, Option(help="CA certificates to trust (PEM) [default: OSMOSIS_CA_FILE]")] = None
    name: Annotated[str | None, Option(help="Name of the worker [default: the host name]")] = None
    max_jobs: Annotated[int | None, Option(min=1, help="Maximum number of concurrent jobs [default: 1]")] = None
    labels: Annotated[
        list[str] | None, Option("--label", help="KEY=VALUE that runs can ask for, such as gpu=a100; may be repeated")
    ] = None
    data_dir: Annotated[
        Path | None, Option(help="Folder for checkouts, environments and journals [default: the user data folder]")
    ] = None
    executor: Annotated[
        ExecutorName | None, Option(help="Where jobs run: on this machine, or by a scheduler [default: local]")
    ] = None
    config: Annotated[Path | None, Option(help="worker.toml with all other options (docs/scaling.md)")] = None
    advertise_url: AdvertiseUrl = None
    gate_listen: GateListen = None
    insecure_http: Annotated[
        bool | None, Option("--insecure-http", help="Allow plain http to and from those servers", hidden=True)
    ] = None
    ray_address: Annotated[str | None, Option(help="URL of the Ray cluster's dashboard", hidden=True)] = None
    require_sandbox: RequireSandbox = False
    no_sandbox: Annotated[bool, Option(help="Run rollouts with the rights of this user")] = False
    sandbox_allow: SandboxAllow = None


@app.command()
@takes(WorkerFlags)
def start(flags: WorkerFlags) -> int:
    """Run a platform's jobs on this machine until Ctrl-C.

    It needs only the platform's URL and a worker token; without --gate-listen it opens no port. Ctrl-C ends its jobs;
    they continue on another worker, or here when it starts again. After
    `osmosis worker delete --drain` it finishes its jobs and exits.

    Example:
        osmosis worker start --platform-url https://osmosis.example.com --token-file worker.token
        osmosis worker start --platform http://127.0.0.1:7575 --token-file worker.token --max-jobs 4 --label gpu=a100
        osmosis worker start --platform-url https://osmosis.example.com --token-file worker.token --executor slurm
    """
    ctx = current()
    config = worker_config(flags.config, flags)
    url = flags.platform_url or ctx.platform_url
    sandbox = _sandbox(flags.require_sandbox, flags.no_sandbox, flags.sandbox_allow or [])
    path = flags.ca_file or ctx.environ.get(CA_FILE)
    trusted = Path(check_ca_file(ctx.path(path), "--ca-file" if flags.ca_file else CA_FILE)) if path else None
    folder = (flags.data_dir or paths.data_dir(ctx.environ) / "worker").resolve()
    plan = WorkerPlan(
        name=flags.name or socket.gethostname(),
        platform_url=url,
        runs_dir=folder / "runs",
        cache_dir=folder / "cache",
        state_dir=folder / "state",
        max_jobs=config.max_jobs,
        kinds=("eval", "training") if find_python(TRAINER_PYTHON, ctx.environ) is not None else ("eval",),
        labels=config.labels,
        node_dir=config.node_dir,
        queue_s=config.queue_s,
        look_s=config.poll_s,
        ca_file=str(trusted or ""),
        sandbox=sandbox,
        gate=config.gate if config.gate != GateAddress() else None,
    )
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    command = (sys.executable, "-m", "osmosis.jobs")
    executor = executor_for(config, ctx.environ, local_command=command, folder=folder, sandboxed=not flags.no_sandbox)
    if flags.token_file is None:
        token = ctx.environ.get(TOKEN_VARIABLE, "")
        where = f"--token-file FILE is missing, and {TOKEN_VARIABLE} is not set"
    else:
        try:
            token = flags.token_file.read_text(encoding="utf-8").strip()
        except OSError as problem:
            raise UsageError(f"--token-file: {flags.token_file}: {problem.strerror or problem}") from None
        where = f"--token-file: {flags.token_file} is empty"
    if not token:
        raise UsageError(where, hint="osmosis token create NAME --scope worker > worker.token")
    with HttpPlatformApi(url, token, ca_file=trusted) as api:
        worker = Worker(api, executor, plan)
        on_stop(worker.ask_to_stop)
        try:
            worker.run()
        finally:
            worker.stop()
        if worker.refused is not None:
            raise worker.refused
        return 0


Name = Annotated[str, Argument(help="The worker, as `osmosis worker list` shows it")]


@app.command("list")
def list_workers() -> ListResult:
    """List the platform's workers: their jobs, resources, and when they were last seen.

    Example:
        osmosis worker list
    """
    workers = current().client(scoped=False).workers.all()
    columns = [
        *build_columns("name=Name", "state=State"),
        Column("runs", "Runs", show=lambda v: ", ".join(v) if v else "-"),
        Column("max_jobs", "Jobs at most"),
        Column(
            "labels", "Labels", show=lambda v: " ".join(f"{key}={value}" for key, value in (v or {}).items()) or "-"
        ),
        Column("resources", "Has", show=_sizes),
        Column("version", "Version"),
        Column("workspace", "Workspace", show=lambda v: v or "all"),
        Column("last_seen", "Last seen", show=when),
        Column("note", "Note", wide=True),
    ]
    return ListResult([row.to_dict() for row in workers], columns, empty="no workers: osmosis worker start")


@app.command("delete")
def delete(
    name: Name,
    after_jobs: Annotated[bool, Option("--drain", help="Give it no more jobs: it exits when its own are done")] = False,
) -> OperationResult:
    """Remove a worker at once. It exits, and its jobs continue on other workers with what they have stored.

    Its token stays valid: delete it as well if it may have leaked.

    Example:
        osmosis worker delete gpu-box
        osmosis worker delete gpu-box --drain
    """
    ctx = current()
    if after_jobs:
        ctx.client(scoped=False).workers.drain(name)
        return OperationResult("worker.drain", f"worker {name} gets no more jobs", {"name": name})
    prompts.agree(ctx, f"Remove worker {name}? Its jobs continue on other workers.", "worker.remove")
    released = ctx.client(scoped=False).workers.remove(name)
    words = f"worker {name} is removed" + (f"; {released} jobs continue on other workers" if released else "")
    step = NextStep("delete its token, too", command="osmosis token list")
    return OperationResult("worker.remove", words, {"name": name, "released": released}, next_steps=[step])


def _sandbox(required: bool, off: bool, allow: Sequence[str]) -> SandboxSettings:
    if required and off:
        raise UsageError("--require-sandbox and --no-sandbox contradict each other", hint="give one of them")
    if required:
        probe().require(Level.NAMESPACES)
    try:
        return SandboxSettings(required=required, off=off, allow=list(allow))
    except ValueError:
        raise ValidationError("--sandbox-allow: write host:port with an IPv4 address or localhost") from None


def _sizes(has: dict[str, float] | None) -> str:
    has = has or {}
    words = [f"{has['cpus']:g} cpus"] if has.get("cpus") else []
    words += [f"{has['memory_mb'] / 1024:.0f} GB"] if has.get("memory_mb") else []
    words += [f"{has['gpus']:g} gpus"] if has.get("gpus") else []
    return ", ".join(words) or "-"


def worker_config(file: Path | None, flags: WorkerFlags) -> WorkerConfig:
    if flags.ray_address is not None and flags.executor not in (None, "ray"):
        message = f"--ray-address and --executor {flags.executor} contradict each other"
        raise UsageError(message, hint="give one of them")
    data = _read(file) if file is not None else {}
    data |= without_none({"executor": flags.executor, "max_jobs": flags.max_jobs})
    if flags.ray_address is not None:
        data["executor"] = "ray"
    gate: dict[str, object] = {"advertise_url": flags.advertise_url, "listen": flags.gate_listen}
    ray: dict[str, object] = {"address": flags.ray_address}
    for name, values in {"ray": ray, "gate": {**gate, "insecure_http": flags.insecure_http or None}}.items():
        table, options = data.get(name, {}), without_none(values)
        if options and isinstance(table, dict):
            data[name] = {**table, **options}
    config = _checked(data, str(file or "worker start"))
    config.gate.refuse()
    return config.model_copy(update={"labels": {**config.labels, **dict(_label(text) for text in flags.labels or [])}})


def _read(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as problem:
        raise UsageError(f"--config: {file}: {problem.strerror or problem}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise ValidationError(f"{file}: {problem}") from problem


def _checked(data: dict[str, object], where: str) -> WorkerConfig:
    try:
        return WorkerConfig.model_validate(data, strict=True)
    except PydanticError as error:
        messages = [_explain_error(error_entry) for error_entry in error.errors(include_url=False)]
        raise ValidationError(f"{where}: {'; '.join(messages)}", hint="docs/scaling.md lists the keys") from error


def _explain_error(error: ErrorDetails) -> str:
    key, context = ".".join(map(str, error["loc"])), error.get("ctx", {})
    if "fix" in context:
        return f"{key}: {context['what']} (fix: {context['fix']})"
    return f"{key}: no such key" if error["type"] == "extra_forbidden" else f"{key}: {error['msg']}"


def _label(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not key.strip() or not sign:
        raise UsageError(f"--label {text!r}: write KEY=VALUE, such as gpu=a100")
    return key.strip(), value.strip()
