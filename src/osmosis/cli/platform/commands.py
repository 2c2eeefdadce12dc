"""`osmosis platform`: the platform of this machine as a background process; does not import `osmosis.platform`."""

import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from osmosis.cli.core.app import takes
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.prompts import open_page
from osmosis.cli.core.results import Column, DetailResult, ListResult, NextStep, OperationResult
from osmosis.cli.platform import process as local_platform
from osmosis.cli.platform.process import Running, StartPlan
from osmosis.cli.worker import AdvertiseUrl, GateListen, RequireSandbox, SandboxAllow
from osmosis.client.credentials import CredentialStore
from osmosis.errors import Conflict, NotFound, UsageError
from osmosis.records.sandbox import LIMITS
from osmosis.sandbox import probe
from osmosis.workspace.doctor import training

_PASSED_ON = (
    *("public_url", "max_jobs", "allowed_host", "sandbox_allow", "sandbox_limit", "remote_allow", "advertise_url"),
    *("gate_listen", "insecure_http", "no_worker", "require_sandbox", "no_sandbox"),
)
"""Flags of the process itself."""


@dataclass(frozen=True)
class StartFlags:
    port: Annotated[int | None, Option(min=0, max=65535, help="Port to listen on [default: 7575, or a free one]")] = (
        None
    )
    host: Annotated[str, Option(help="Address to listen on")] = "127.0.0.1"
    public_url: Annotated[str | None, Option(help="URL that clients use, when it differs from host and port")] = None
    allowed_host: Annotated[
        list[str] | None,
        Option(help="Host name that requests may carry, such as osmosis.lan or *.example.com; may be repeated"),
    ] = None
    database_url: Annotated[str | None, Option(help="SQLAlchemy URL [default: SQLite in the data folder]")] = None
    insecure_http: Annotated[bool, Option(help="Listen beyond this machine without https: tokens can be read")] = False
    remote_allow: Annotated[
        list[str] | None,
        Option(help="Host of git remotes that may be reached at a private address; may be repeated", hidden=True),
    ] = None
    advertise_url: AdvertiseUrl = None
    gate_listen: GateListen = None
    max_jobs: Annotated[int | None, Option(min=1, help="Maximum number of jobs that run at once")] = None
    no_worker: Annotated[bool, Option(help="Run no jobs here: workers elsewhere do (osmosis worker start)")] = False
    require_sandbox: RequireSandbox = False
    no_sandbox: Annotated[bool, Option(help="Run rollouts with the rights of the platform's user")] = False
    sandbox_allow: SandboxAllow = None
    sandbox_limit: Annotated[
        list[str] | None,
        Option(
            help=f"NAME=VALUE: what a rollout server may use ({', '.join(LIMITS)}); may be repeated",
            metavar="NAME=VALUE",
            hidden=True,
        ),
    ] = None


@takes(StartFlags)
def start(flags: StartFlags) -> OperationResult:
    """Start the platform in the background. Does nothing if it is already running.

    Options for teams and other machines are in docs/platform.md.

    Example:
        osmosis platform start
        osmosis platform start --port 8080
    """
    ctx = current()
    data_dir = local_platform.data_dir_of(ctx.environ)
    if flags.require_sandbox and flags.no_sandbox:
        raise UsageError("--require-sandbox and --no-sandbox contradict each other", hint="give one of them")
    words = []
    for name in _PASSED_ON:
        flag, value = f"--{name.replace('_', '-')}", getattr(flags, name)
        if isinstance(value, bool):
            words += [flag] if value else []
        elif value is not None:
            words += [f"{flag}={each}" for each in (value if isinstance(value, list) else [value])]
    plan = StartPlan(data_dir, flags.host, flags.port, flags.database_url, words)
    running, started = local_platform.start(plan, ctx.environ, say=ctx.output.say)
    ctx.output.say(f"rollouts run at {'level 0 (--no-sandbox)' if flags.no_sandbox else probe().describe}")
    if not started and flags.port not in (None, 0, running.port):
        message = f"the platform is already running at {running.url}, not on port {flags.port}"
        raise Conflict(message, hint=f"osmosis platform stop, then: osmosis platform start --port {flags.port}")
    login = [] if CredentialStore(ctx.environ).find(running.url) else [NextStep("log in", command="osmosis login")]
    message = f"platform {'started' if started else 'already running'} at {running.url}"
    resource = {**_facts(running, plan.data_dir), "started": started}
    steps = [*login, NextStep("open", url=running.url)]
    return OperationResult("platform.start", message, resource, next_steps=steps)


def status() -> DetailResult:
    """Show whether the platform is running, where and since when. Exits with 1 when it is not.

    Example:
        osmosis platform status
    """
    ctx = current()
    if ctx.options.platform:
        url = ctx.platform_url
        alive = local_platform.healthy(url)
        return DetailResult({"running": alive, "url": url}, title="platform", exit_code=0 if alive else 1)
    data_dir = local_platform.data_dir_of(ctx.environ)
    running = local_platform.find(data_dir)
    if running is None:
        data, steps = {"running": False, "data_dir": str(data_dir)}, [NextStep("start it", "osmosis platform start")]
        return DetailResult(data, title="platform", exit_code=1, next_steps=steps)
    answers = local_platform.healthy(running.url)
    facts = {"running": True, "answers": answers, **_facts(running, data_dir), "training": training(ctx.environ)[1]}
    facts["sandbox"] = probe().describe
    return DetailResult(facts, title="platform", exit_code=0 if answers else 1)


def stop(
    force: Annotated[bool, Option(help="Stop it immediately; runs continue when it starts again")] = False,
) -> OperationResult:
    """Stop the platform gracefully. Unfinished runs continue when it starts again.

    Example:
        osmosis platform stop
    """
    stopped = local_platform.stop(local_platform.data_dir_of(current().environ), force=force)
    if stopped is None:
        return OperationResult("platform.stop", "the platform is not running", {"stopped": False})
    return OperationResult("platform.stop", f"platform stopped ({stopped.url})", {"stopped": True, "pid": stopped.pid})


def open_pages(
    no_browser: Annotated[bool, Option(help="Print the link instead of opening it")] = False,
) -> OperationResult:
    """Open the platform's pages in a browser, logged in with a one-time link.

    Example:
        osmosis platform open
        osmosis platform open --no-browser
    """
    ctx = current()
    with ctx.client(scoped=False) as client:
        link = client.accounts.browser_link()
    url = link.url
    opened = not no_browser and open_page(ctx, url)
    message = f"the link works once and expires in {link.expires_in // 60} minutes"
    steps = [NextStep("opened" if opened else "open", url=url)]
    return OperationResult("platform.open", message, {"url": url, "opened": opened}, next_steps=steps)


def logs(
    follow: Annotated[bool, Option("--follow", "-f", help="Follow the log until Ctrl-C")] = False,
    lines: Annotated[int, Option("--lines", "-n", min=1, help="Show the last N lines")] = 50,
) -> ListResult | None:
    """Show the platform's log.

    Example:
        osmosis platform logs -f
    """
    ctx = current()
    path = local_platform.log_file(local_platform.data_dir_of(ctx.environ))
    if not path.is_file():
        raise NotFound(f"no log yet at {path}", hint="osmosis platform start")

    with path.open(errors="replace") as file:
        tail = [line.rstrip("\n") for line in deque(file, maxlen=lines)]
    if not follow:
        items = [{"line": line} for line in tail]
        return ListResult(
            items, [Column("line", "Line")], human=lambda console: _print(ctx, tail), empty="the log is empty"
        )
    _print(ctx, tail)
    _follow(ctx, path)
    return None


def _facts(running: Running, data_dir: Path) -> dict[str, object]:
    facts = {name: getattr(running, name) for name in ("url", "pid", "port", "version", "started_at")}
    return {**facts, "data_dir": str(data_dir), "log": str(local_platform.log_file(data_dir))}


def _print(ctx: AppContext, lines: list[str]) -> None:
    for line in lines:
        ctx.output.stream({"line": line}, line)


def _follow(ctx: AppContext, path: Path) -> None:
    file = path.open(errors="replace")
    file.seek(0, 2)
    try:
        while True:
            if line := file.readline():
                _print(ctx, [line.rstrip("\n")])
                continue
            time.sleep(0.3)
            try:
                rotated = path.stat().st_size < file.tell()
            except FileNotFoundError:
                continue
            if rotated:
                file.close()
                file = path.open(errors="replace")
    finally:
        file.close()
