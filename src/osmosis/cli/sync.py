"""`osmosis sync`: have the platform look at the repository, and see what it has next to what is here."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis.base.json_types import JsonObject
from osmosis.errors import Conflict, NotFound
from osmosis.records.source import Source, SyncState
from osmosis.workspace import findings
from osmosis.workspace.git import read_source
from osmosis.workspace.layout import find_workspace

from .context import AppContext, current
from .drawing import Canvas, Line
from .results import DetailResult, NextStep, OperationResult, clean

app = typer.Typer(invoke_without_command=True)
_FOUND = {"mcp": "tools", "reward_fn": "rewards", "reward_rubric": "rubrics", "config": "configs"}
"""What is found beside rollouts, as people call it."""


@app.callback()
def sync(
    parsed: typer.Context,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the platform has synced HEAD.")] = False,
    timeout: Annotated[float, typer.Option(help="Maximum seconds to wait.", min=1)] = 300.0,
) -> OperationResult | None:
    """Ask the platform to sync the repository now. With --wait, wait until it has synced HEAD.

    Example:

        osmosis sync --wait
        osmosis sync status
    """
    if parsed.invoked_subcommand is not None:
        return None
    ctx = current()
    source = _source(ctx)
    with ctx.client() as client:
        _require_connected(client.sync.state(), source)
        if not wait:
            client.sync.start()
            state = client.sync.state()
        elif source is not None and source.commit:
            _require_pushed(source)
            what = f"waiting for the platform to sync {source.commit[:10]}"
            state = client.sync.wait_for(
                source.commit,
                source.branch,
                timeout_s=timeout,
                said=lambda status: ctx.output.say(f"{what} ({status})"),
            )
        else:
            state = client.sync.wait_until_done(timeout_s=timeout)
    body = _body(state, source)
    commit = state.synced(source.branch if source else None)
    have = f"the platform has {commit[:10]}" if commit else "the platform has no commit yet"
    message = f"{have} of {(source.branch if source else None) or state.default_branch}"
    steps = _steps(state, source)
    return OperationResult("sync.start", message, body, next_steps=steps)


@app.command("status")
def status() -> DetailResult:
    """Compare what the platform has synced with your checkout.

    Example:

        osmosis sync status
    """
    ctx = current()
    source = _source(ctx)
    with ctx.client() as client:
        state = client.sync.state(rollouts=True)
    body = _body(state, source)
    steps = _steps(state, source)
    return DetailResult(body, title="Git Sync", human=lambda console: _draw(console, body), next_steps=steps)


def _draw(console: Canvas, body: JsonObject) -> None:
    platform, here = body["platform"], body["here"]

    def row(label: str, value: str, style: str = "default") -> None:
        line = Line(f"{label:<10} ", style="dim")
        line.append(clean(value), style=style)
        console.print(line)

    known = platform["repository"] if platform["connected"] else "does not know this repository"
    row("platform", f"{known} ({platform['status'] or 'no sync yet'})")
    for branch, commit in platform["branches"].items():
        default = " (default)" if branch == platform["default_branch"] else ""
        row("", f"{commit[:10]} {branch}{default}")
    if platform["rollouts"]:
        row("rollouts", ", ".join(platform["rollouts"]))
    for kind, label in _FOUND.items():
        if names := [one["name"] for one in platform["found"] if one["kind"] == kind]:
            row(label, ", ".join(names))
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


def _body(state: SyncState, source: Source | None) -> dict[str, object]:
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
            "found": [one.to_dict() for one in state.found],
            "events": state.events[:10],
        },
        "here": here,
        "in_sync": source is not None and not differing,
        "differences": differing,
    }


def _steps(state: SyncState, source: Source | None) -> list[NextStep]:
    step = findings.next_step(source, state) if source else None
    return [NextStep(step[0], command=step[1])] if step else []
