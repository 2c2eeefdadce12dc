"""`osmosis worker`: machines that run jobs for a platform. A worker holds a URL and a token, and nothing else.

`start` runs here, in the foreground; the others speak to the platform.
"""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from osmosis.base import paths
from osmosis.base.machine import TRAINER_PYTHON, find_python
from osmosis.base.stop_signals import on_stop
from osmosis.client.settings import CA_FILE, checked_ca_file
from osmosis.errors import UsageError, ValidationError
from osmosis.records.contract.accounts import TOKEN_DAYS, NewToken, TokenRow
from osmosis.records.gate_address import GateAddress
from osmosis.records.sandbox import SandboxSettings
from osmosis.records.worker_config import ExecutorName
from osmosis.sandbox import Level, probe
from osmosis.worker.desk import HttpDesk
from osmosis.worker.executors.choose import executor_for
from osmosis.worker.loop import Worker, WorkerPlan

from . import prompts
from .context import AppContext, current
from .output import Mode
from .results import Column, ListResult, NextStep, OperationResult, when
from .token import expiry_seconds, find_token
from .worker_options import AdvertiseUrl, GateListen, WorkerFlags, worker_config

TOKEN_VARIABLE = "OSMOSIS_WORKER_TOKEN"
app = typer.Typer(
    help="""Machines that run jobs for a platform: start, list, drain, remove.

    On the platform's machine:
        osmosis worker token create --name gpu-box > worker.token

    On the machine that is to work, with that file:
        osmosis worker start --platform-url https://osmosis.example.com --token-file worker.token
    """
)
token_app = typer.Typer(
    help="""Tokens for workers: create, list, revoke.

    Example:
        osmosis worker token create --name gpu-box > worker.token
    """
)
app.add_typer(token_app, name="token")


@app.command()
def start(
    token_file: Annotated[
        Path | None, typer.Option(help=f"File with the worker's token [default: {TOKEN_VARIABLE} of the environment]")
    ] = None,
    platform_url: Annotated[
        str | None, typer.Option(help="The platform's URL, https:// [default: the one of --platform]")
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(help="CA certificates to trust (PEM) [default: OSMOSIS_CA_FILE]")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the worker [default: the host name]")] = None,
    max_jobs: Annotated[int | None, typer.Option(min=1, help="Maximum number of concurrent jobs [default: 1]")] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE that runs can ask for, such as gpu=a100; may be repeated")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder for checkouts, environments and journals [default: the user data folder]"),
    ] = None,
    executor: Annotated[
        ExecutorName | None,
        typer.Option(help="Where jobs run: this machine, or a scheduler [default: local]"),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="worker.toml with the scheduler's options: see docs/scaling.md")
    ] = None,
    advertise_url: AdvertiseUrl = None,
    gate_listen: GateListen = None,
    insecure_http: Annotated[
        bool, typer.Option("--insecure-http", help="Allow plain http to and from those servers: traffic can be read")
    ] = False,
    ray_address: Annotated[
        str | None, typer.Option(help="URL of the Ray cluster's dashboard, such as http://ray-head:8265")
    ] = None,
    require_sandbox: Annotated[
        bool, typer.Option("--require-sandbox", help="Fail jobs where rollouts cannot run in a sandbox")
    ] = False,
    no_sandbox: Annotated[bool, typer.Option("--no-sandbox", help="Run rollouts with the rights of this user")] = False,
    sandbox_allow: Annotated[
        list[str] | None,
        typer.Option(help="host:port that rollouts may reach on this machine or in its network; may be repeated"),
    ] = None,
) -> int:
    """Run a platform's jobs on this machine until Ctrl-C.

    It needs only the platform's URL and a worker token; without --gate-listen it opens no port. Ctrl-C ends its jobs;
    they continue on another worker, or here when it starts again. After `osmosis worker drain` it
    finishes its jobs and exits.

    Example:
        osmosis worker start --platform-url https://osmosis.example.com --token-file worker.token
        osmosis worker start --platform http://127.0.0.1:7575 --token-file worker.token --max-jobs 4 --label gpu=a100
        osmosis worker start --platform-url https://osmosis.example.com --token-file worker.token --executor slurm
    """
    ctx = current()
    flags = WorkerFlags(
        executor=executor,
        max_jobs=max_jobs,
        labels=label or [],
        ray_address=ray_address,
        advertise_url=advertise_url,
        gate_listen=gate_listen,
        insecure_http=insecure_http or None,
    )
    told = worker_config(config, flags)
    url = platform_url or ctx.platform_url
    sandbox = _sandbox(require_sandbox, no_sandbox, sandbox_allow or [])
    trusted = _trusted(ctx, ca_file)
    folder = (data_dir or paths.data_dir(ctx.environ) / "worker").resolve()
    plan = WorkerPlan(
        name=name or socket.gethostname(),
        platform_url=url,
        runs_dir=folder / "runs",
        cache_dir=folder / "cache",
        state_dir=folder / "state",
        max_jobs=told.max_jobs,
        kinds=("eval", "training") if find_python(TRAINER_PYTHON, ctx.environ) is not None else ("eval",),
        labels=told.labels,
        node_dir=told.node_dir,
        queue_s=told.queue_s,
        look_s=told.poll_s,
        ca_file=str(trusted or ""),
        sandbox=sandbox,
        gate=told.gate if told.gate != GateAddress() else None,
    )
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    command = (sys.executable, "-m", "osmosis.jobs")
    chosen = executor_for(told, ctx.environ, local_command=command, folder=folder, sandboxed=not no_sandbox)
    with HttpDesk(url, _token(ctx, token_file), ca_file=trusted) as desk:
        return _until_stopped(Worker(desk, chosen, plan))


def _trusted(ctx: AppContext, ca_file: Path | None) -> Path | None:
    told = ca_file or ctx.environ.get(CA_FILE)
    return Path(checked_ca_file(ctx.path(told), "--ca-file" if ca_file else CA_FILE)) if told else None


def _until_stopped(worker: Worker) -> int:
    on_stop(worker.ask_to_stop)
    try:
        worker.run()
    finally:
        worker.stop()
    if worker.refused is not None:
        raise worker.refused
    return 0


@app.command("list")
def list_workers() -> ListResult:
    """List the platform's workers: their jobs, resources, and when they were last seen.

    Example:
        osmosis worker list
    """
    ctx = current()
    with ctx.client(scoped=False) as client:
        found = client.workers.all()
    columns = [
        Column("name", "Name"),
        Column("state", "State"),
        Column("runs", "Runs", show=lambda v: ", ".join(v) if v else "-"),
        Column("max_jobs", "Jobs at most"),
        Column("labels", "Labels", show=_pairs),
        Column("resources", "Has", show=_sizes),
        Column("version", "Version"),
        Column("workspace", "Workspace", show=lambda v: v or "all"),
        Column("last_seen", "Last seen", show=when),
        Column("note", "Note", wide=True),
    ]
    return ListResult([row.to_dict() for row in found], columns, empty="no workers: osmosis worker start")


@app.command()
def drain(
    name: Annotated[str, typer.Argument(help="The worker, as `osmosis worker list` shows it")],
) -> OperationResult:
    """Give a worker no more jobs. It finishes those it has, then exits.

    Example:
        osmosis worker drain gpu-box
    """
    ctx = current()
    with ctx.client(scoped=False) as client:
        client.workers.drain(name)
    return OperationResult("worker.drain", f"worker {name} gets no more jobs", {"name": name})


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="The worker, as `osmosis worker list` shows it")],
    yes: prompts.Yes = False,
) -> OperationResult:
    """Remove a worker at once. It exits, and its jobs continue on other workers with what they have stored.

    Its token stays valid: revoke it as well if it may have leaked.

    Example:
        osmosis worker remove gpu-box
    """
    ctx = current()
    if not prompts.confirm(ctx, f"Remove worker {name}? Its jobs continue on other workers.", yes=yes):
        return OperationResult("worker.remove", "Cancelled.", status="cancelled")
    with ctx.client(scoped=False) as client:
        released = client.workers.remove(name)
    words = f"worker {name} is removed" + (f"; {released} jobs continue on other workers" if released else "")
    step = NextStep("revoke its token", command="osmosis worker token list")
    return OperationResult("worker.remove", words, {"name": name, "released": released}, next_steps=[step])


@token_app.command()
def create(
    name: Annotated[str, typer.Option("--name", help="Name of the token, such as gpu-box")],
    expires: Annotated[str, typer.Option(help="Lifetime, such as 12h or 30d; at most 366d")] = f"{TOKEN_DAYS}d",
) -> OperationResult | int:
    """Create a token for workers and print it, alone, on standard output; it is not shown again.

    Only operators can create one for all workspaces. With --workspace, the workspace's owners and admins can create
    one for its runs.

    Example:
        osmosis worker token create --name gpu-box > worker.token
        osmosis worker token create --name gpu-box --workspace demo > worker.token
    """
    ctx = current()
    wish = NewToken(name=name, scopes=["worker"], workspace=ctx.options.workspace, expires_in=expiry_seconds(expires))
    with ctx.client(scoped=False) as client:
        made = client.accounts.make_token(wish)
    if ctx.mode is Mode.JSON:
        return OperationResult("worker.token.create", f"worker token {name}", made.to_dict())
    where = f"of workspace {made.workspace}" if made.workspace else "of all workspaces"
    ctx.output.say(f"worker token {name}, for runs {where}, until {when(made.expires_at)}; it is shown this once")
    ctx.output.stdout.write(f"{made.token}\n")
    return 0


@token_app.command("list")
def list_tokens() -> ListResult:
    """List your worker tokens, without their values.

    Example:
        osmosis worker token list
    """
    columns = [
        Column("name", "Name"),
        Column("workspace", "Workspace", show=lambda v: v or "all"),
        Column("expires_at", "Expires", show=when),
        Column("last_used_at", "Last used", show=when),
        Column("id", "Id", wide=True),
    ]
    found = _worker_tokens(current())
    return ListResult(
        [row.to_dict() for row in found], columns, empty="no worker tokens: osmosis worker token create --name NAME"
    )


@token_app.command()
def revoke(
    token: Annotated[str, typer.Argument(help="Its name or id, as `osmosis worker token list` shows it")],
    yes: prompts.Yes = False,
) -> OperationResult:
    """Revoke a worker token. Its workers get no more jobs, but finish those they have.

    Example:
        osmosis worker token revoke gpu-box
    """
    ctx = current()
    row = find_token(_worker_tokens(ctx), token)
    if not prompts.confirm(ctx, f"Revoke worker token {row.name}?", yes=yes):
        return OperationResult("worker.token.revoke", "Cancelled.", status="cancelled")
    with ctx.client(scoped=False) as client:
        client.accounts.revoke(row.id)
    return OperationResult("worker.token.revoke", f"worker token {row.name} is revoked", row.to_dict())


def _worker_tokens(ctx: AppContext) -> list[TokenRow]:
    with ctx.client(scoped=False) as client:
        return [row for row in client.accounts.tokens() if "worker" in (row.scopes or [])]


def _token(ctx: AppContext, file: Path | None) -> str:
    if file is None:
        found = ctx.environ.get(TOKEN_VARIABLE, "")
        where = f"--token-file FILE is missing, and {TOKEN_VARIABLE} is not set"
    else:
        try:
            found = file.read_text(encoding="utf-8").strip()
        except OSError as problem:
            raise UsageError(f"--token-file: {file}: {problem.strerror or problem}") from None
        where = f"--token-file: {file} is empty"
    if not found:
        raise UsageError(where, hint="osmosis worker token create --name NAME > worker.token")
    return found


def _sandbox(required: bool, off: bool, allow: Sequence[str]) -> SandboxSettings:
    if required and off:
        raise UsageError("--require-sandbox and --no-sandbox contradict each other", hint="give one of them")
    if required:
        probe().require(Level.NAMESPACES)
    try:
        return SandboxSettings(required=required, off=off, allow=list(allow))
    except ValueError:
        raise ValidationError("--sandbox-allow: write host:port with an IPv4 address or localhost") from None


def _pairs(labels: dict[str, str] | None) -> str:
    return " ".join(f"{key}={value}" for key, value in (labels or {}).items()) or "-"


def _sizes(has: dict[str, float] | None) -> str:
    has = has or {}
    words = [f"{has['cpus']:g} cpus"] if has.get("cpus") else []
    words += [f"{has['memory_mb'] / 1024:.0f} GB"] if has.get("memory_mb") else []
    words += [f"{has['gpus']:g} gpus"] if has.get("gpus") else []
    return ", ".join(words) or "-"
