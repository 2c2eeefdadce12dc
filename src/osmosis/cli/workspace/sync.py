from functools import partial
from typing import Annotated

from rich.console import Console
from typer import Option

from osmosis.base.jsonable import JsonObject
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.render import print_field
from osmosis.cli.core.results import DetailResult, NextStep, OperationResult
from osmosis.errors import Conflict, NotFound
from osmosis.records.run.source import Source, SyncState
from osmosis.workspace import findings
from osmosis.workspace.git import read_source
from osmosis.workspace.layout import find_workspace

_FOUND = {"mcp": "tools", "reward_fn": "rewards", "reward_rubric": "rubrics", "config": "configs"}


def sync(
    wait: Annotated[bool, Option(help="Wait until the platform has synced HEAD.")] = False,
    timeout: Annotated[float, Option(help="Maximum seconds to wait.", min=1)] = 300.0,
    look: Annotated[bool, Option("--status", help="Only compare, without a sync.")] = False,
) -> OperationResult | DetailResult:
    """Ask the platform to sync the repository now. With --wait, wait until it has synced HEAD.

    Example:
        osmosis sync --wait
        osmosis sync --status
    """
    if look:
        return status()
    ctx = current()
    source = _source(ctx)
    with ctx.client() as client:
        if not client.sync.state().connected:
            problem = findings.unknown_remote(source)
            raise NotFound(problem.what, hint=problem.fix)
        if not wait:
            client.sync.start()
            state = client.sync.state()
        elif source is not None and source.commit:
            _require_pushed(source)
            commit, branch = source.commit, source.branch

            def report(status: str) -> None:
                ctx.output.say(f"waiting for the platform to sync {commit[:10]} ({status})")

            state = client.sync.wait_for(commit, branch, timeout_s=timeout, said=report)
        else:
            state = client.sync.wait_until_done(timeout_s=timeout)
    body = _body(state, source)
    synced = state.synced(source.branch if source else None)
    have = f"the platform has {synced[:10]}" if synced else "the platform has no commit yet"
    message = f"{have} of {(source.branch if source else None) or state.default_branch}"
    return OperationResult("sync.start", message, body, next_steps=_steps(state, source))


def status() -> DetailResult:
    ctx = current()
    source = _source(ctx)
    with ctx.client() as client:
        state = client.sync.state(rollouts=True)
    body = _body(state, source)
    steps = _steps(state, source)
    return DetailResult(body, title="Git Sync", human=lambda console: _draw(console, body), next_steps=steps)


def _draw(console: Console, body: JsonObject) -> None:
    platform, checkout = body["platform"], body["here"]

    row = partial(print_field, console)
    repository = platform["repository"] if platform["connected"] else "does not know this repository"
    row("platform", f"{repository} ({platform['status'] or 'no sync yet'})")
    for branch, commit in platform["branches"].items():
        default = " (default)" if branch == platform["default_branch"] else ""
        row("", f"{commit[:10]} {branch}{default}")
    if platform["rollouts"]:
        row("rollouts", ", ".join(platform["rollouts"]))
    for kind, label in _FOUND.items():
        if names := [entry["name"] for entry in platform["found"] if entry["kind"] == kind]:
            row(label, ", ".join(names))
    if platform["error"]:
        row("error", platform["error"], "red")
    if checkout:
        row("here", f"{str(checkout.get('commit') or 'no commit')[:10]} {checkout.get('branch') or 'detached'}")
    for text in body["differences"]:
        row("differs", text, "yellow")
    if body["in_sync"]:
        row("", "in sync", "green")


def _source(ctx: AppContext) -> Source | None:
    return None if ctx.options.workspace else read_source(find_workspace(ctx.cwd).root)


def _require_pushed(source: Source) -> None:
    finding = findings.detached(source, source.default_branch) if source.detached else findings.unpushed(source)
    if finding:
        raise Conflict(finding.what, hint=finding.fix)


def _body(state: SyncState, source: Source | None) -> dict[str, object]:
    checkout = source.to_dict() if source else None
    differing = [p.what for p in findings.list_differences(source, state)] if source else []
    platform = state.model_dump(exclude={"found", "events"})
    platform |= {"found": [finding.to_dict() for finding in state.found], "events": state.events[:10]}
    in_sync = source is not None and not differing
    return {"platform": platform, "here": checkout, "in_sync": in_sync, "differences": differing}


def _steps(state: SyncState, source: Source | None) -> list[NextStep]:
    step = findings.next_step(source, state) if source else None
    return [NextStep(step[0], command=step[1])] if step else []
