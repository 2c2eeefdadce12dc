"""`osmosis sync`: have the platform look at the repository, and see what it has next to what is here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import Conflict, NotFound, OsmosisError, PlatformError
from ..records.source import Source, SyncState
from ..workspace import findings
from .context import AppContext, current
from .output import DetailResult, NextStep, OperationResult

if TYPE_CHECKING:
    from ..client import PlatformClient

app = typer.Typer(invoke_without_command=True)
NOT_CONNECTED = ("GIT_REPOSITORY_NOT_CONNECTED", "GIT_SCOPE_REQUIRED", "WORKSPACE_SCOPE_HEADER_ACCESS_DENIED")
_BUSY = ("Pending", "Syncing")
POLL_S = 0.5


def ask_sync(client: PlatformClient, *, rollouts: bool = False) -> SyncState:
    """What the platform has. A repository it does not know is a state too, not an error."""
    from ..workspace.preflight import sync_state

    try:
        state = sync_state(client.sync.state())
    except OsmosisError as error:
        if isinstance(error, NotFound) or error.details.get("platform_code") in NOT_CONNECTED:
            return SyncState(connected=False, error=error.message)
        raise
    assert state is not None
    if rollouts and state.commit_sha:
        state.rollouts = [str(row.get("name")) for row in client.sync.rollouts()]
    return state


def wait_for_commit(
    ctx: AppContext, client: PlatformClient, commit: str, branch: str | None, *, timeout_s: float = 300.0
) -> SyncState:
    """Poll until the platform has this commit of the branch. Raises with the sync's own error when it failed, or
    when time is over."""
    deadline = time.monotonic() + timeout_s
    started = False
    said = ""
    while True:
        state = ask_sync(client)
        if state.synced(branch) == commit:
            return state
        status = state.status or "no sync yet"
        if status not in _BUSY:
            if started and status == "Failed":
                hint = "osmosis sync status, then correct it and push again"
                raise PlatformError(f"the sync failed: {state.error or 'no reason given'}", hint=hint)
            if started and status == "Success":
                raise Conflict(
                    f"the platform synced {branch or state.default_branch}, but not {commit[:10]}",
                    hint="git push, then osmosis sync --wait",
                )
            client.sync.start()
            started = True
        if status != said:
            ctx.output.say(f"waiting for the platform to sync {commit[:10]} ({status})")
            said = status
        if time.monotonic() > deadline:
            hint = "osmosis sync status; the platform's log says more: osmosis platform logs"
            raise PlatformError(f"the platform has not synced {commit[:10]} after {timeout_s:g} s", hint=hint)
        time.sleep(POLL_S)


@app.callback()
def sync(
    parsed: typer.Context,
    wait: Annotated[bool, typer.Option("--wait", help="Until the platform has the commit of HEAD.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait at most.", min=1)] = 300.0,
) -> OperationResult | None:
    """Have the platform look at the repository now; with --wait until it has HEAD.

    Example:

        osmosis sync --wait
        osmosis sync status
    """
    if parsed.invoked_subcommand is not None:
        return None
    ctx = current()
    source = _source(ctx)
    with ctx.client() as client:
        before = ask_sync(client)
        _require_connected(before, source)
        if not wait:
            client.sync.start()
            state = ask_sync(client)
        elif source is not None and source.commit:
            _require_pushed(source)
            state = wait_for_commit(ctx, client, source.commit, source.branch, timeout_s=timeout)
        else:
            client.sync.start()
            state = _wait_until_done(client, timeout)
    body = _body(state, source)
    commit = state.synced(source.branch if source else None)
    have = f"the platform has {commit[:10]}" if commit else "the platform has no commit yet"
    message = f"{have} of {(source.branch if source else None) or state.default_branch}"
    steps = _steps(state, source)
    return OperationResult("sync.start", message, body, next_steps=steps)


@app.command("status")
def status() -> DetailResult:
    """Show what the platform has, what is here, and what differs.

    Example:

        osmosis sync status
    """
    ctx = current()
    source = _source(ctx)
    with ctx.client() as client:
        state = ask_sync(client, rollouts=True)
    body = _body(state, source)
    steps = _steps(state, source)
    return DetailResult(body, title="Git Sync", human=lambda console: _draw(console, body), next_steps=steps)


def _draw(console: Any, body: dict[str, Any]) -> None:
    from rich.text import Text

    from .output import clean

    platform, here = body["platform"], body["here"]

    def row(label: str, value: str, style: str = "default") -> None:
        line = Text(f"{label:<10} ", style="dim")
        line.append(clean(value), style=style)
        console.print(line)

    known = platform["repository"] if platform["connected"] else "does not know this repository"
    row("platform", f"{known} ({platform['status'] or 'no sync yet'})")
    for branch, commit in platform["branches"].items():
        default = " (default)" if branch == platform["default_branch"] else ""
        row("", f"{commit[:10]} {branch}{default}")
    if platform["rollouts"]:
        row("rollouts", ", ".join(platform["rollouts"]))
    if platform["error"]:
        row("error", platform["error"], "red")
    if here:
        row("here", f"{str(here.get('commit') or 'no commit')[:10]} {here.get('branch') or 'detached'}")
    for text in body["differences"]:
        row("differs", text, "yellow")
    if body["in_sync"]:
        row("", "in sync", "green")


def _source(ctx: AppContext) -> Source | None:
    """Git facts of the workspace around the current folder; None when `--workspace` speaks for another one."""
    from ..workspace.git import read_source
    from ..workspace.layout import find_workspace

    if ctx.options.workspace:
        return None
    return read_source(find_workspace(ctx.cwd).root)


def _require_connected(state: SyncState, source: Source | None) -> None:
    if not state.connected:
        found = findings.unknown_remote(source)
        raise NotFound(found.what, hint=found.fix)


def _require_pushed(source: Source) -> None:
    found = findings.detached(source, source.default_branch) if source.detached else findings.unpushed(source)
    if found:
        raise Conflict(found.what, hint=found.fix)


def _wait_until_done(client: PlatformClient, timeout_s: float) -> SyncState:
    deadline = time.monotonic() + timeout_s
    state = ask_sync(client)
    while state.status in _BUSY:
        if time.monotonic() > deadline:
            raise PlatformError(f"the sync is not over after {timeout_s:g} s", hint="osmosis sync status")
        time.sleep(POLL_S)
        state = ask_sync(client)
    if state.status == "Failed":
        raise PlatformError(f"the sync failed: {state.error or 'no reason given'}", hint="osmosis sync status")
    return state


def _body(state: SyncState, source: Source | None) -> dict[str, Any]:
    here = source.to_dict() if source else None
    differing = [p.what for p in findings.differences(source, state)] if source else []
    return {
        "platform": {
            "connected": state.connected,
            "repository": state.repository,
            "default_branch": state.default_branch,
            "commit_sha": state.commit_sha,
            "branches": state.branches,
            "status": state.status,
            "error": state.error,
            "rollouts": state.rollouts,
            "events": state.events[:10],
        },
        "here": here,
        "in_sync": source is not None and not differing,
        "differences": differing,
    }


def _steps(state: SyncState, source: Source | None) -> list[NextStep]:
    step = findings.next_step(source, state) if source else None
    return [NextStep(step[0], command=step[1])] if step else []
