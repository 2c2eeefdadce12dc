from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated

from rich.console import Console
from typer import Option

from osmosis.base.jsonable import JsonObject
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.render import print_field
from osmosis.cli.core.results import DetailResult, NextStep, OperationResult
from osmosis.errors import Conflict, NotFound, OsmosisError
from osmosis.records.run.source import Source, SyncState
from osmosis.records.run.status import NOUNS
from osmosis.workspace import preflight
from osmosis.workspace.config_file import ConfigFile, check_file
from osmosis.workspace.git import read_source
from osmosis.workspace.layout import Workspace, find_workspace

_LABELS = {"mcp": "tools", "reward_fn": "rewards", "reward_rubric": "rubrics", "config": "configs"}


def status() -> DetailResult:
    """Show where you are and what to do next.

    Example:
        osmosis status
    """
    ctx = current()
    workspace = find_workspace(ctx.cwd)
    source = read_source(workspace.root)
    configs = []
    for kind, path in workspace.configs():
        file = ConfigFile(kind, path, workspace.relative(path))
        _, problems = check_file(file, workspace)
        errors = [p.line() for p in problems if p.severity == "error"]
        configs.append({"path": file.shown, "kind": kind, "errors": errors})
    state, runs, platform = _platform(ctx)
    data: dict[str, object] = {
        "workspace_directory": str(workspace.root),
        "rollouts": [r.name for r in workspace.rollouts()],
        "configs": configs,
        "datasets": [workspace.relative(p) for p in workspace.datasets()],
        "git": source.to_dict() if source else None,
        "platform": platform,
        "sync": state.to_dict() if state else None,
        "runs": runs,
    }
    steps = next_steps(workspace, source, state, configs, platform, runs)
    return DetailResult(data, title="Status", human=lambda console: _draw(console, data), next_steps=steps)


def _platform(ctx: AppContext) -> tuple[SyncState | None, list[JsonObject], dict[str, object]]:
    facts: dict[str, object] = {"url": None, "reachable": False, "note": None}
    try:
        facts["url"] = ctx.platform_url
        client = ctx.client()
        client.health()
        facts["reachable"] = True
        state = client.sync.state()
        if not state.connected:
            facts["note"] = "does not know this repository"
            return state, [], facts
        runs = [
            {
                "kind": each.whole.kind,
                "name": row.name,
                "status": row.status,
                "created_at": row.created_at,
                "platform_url": row.platform_url,
            }
            for each in (client.evals, client.trainings)
            for row in each.page(limit=3).rows
        ]
        return state, sorted(runs, key=lambda row: str(row["created_at"]), reverse=True)[:3], facts
    except OsmosisError as error:
        facts["note"] = error.message
        facts["hint"] = error.hint
        return None, [], facts


def next_steps(
    workspace: Workspace,
    source: Source | None,
    state: SyncState | None,
    configs: Sequence[Mapping[str, object]],
    platform: JsonObject,
    runs: list[JsonObject],
) -> list[NextStep]:
    if not workspace.rollouts():
        return [NextStep("create a rollout", command="osmosis rollout new multiply --template multiply")]
    broken = [c["path"] for c in configs if c["errors"]]
    if broken:
        return [NextStep("fix a config", command=f"osmosis check {broken[0]}")]
    if source is None:
        return [NextStep("create a git repository", command="osmosis init --here")]
    if step := preflight.next_step(source, state):
        return [NextStep(step[0], command=step[1])]
    if state is None:
        return [NextStep("first the platform", command=platform.get("hint") or "osmosis platform start")]
    evals = [c["path"] for c in configs if c["kind"] == "eval"]
    steps = []
    if evals:
        steps.append(NextStep("evaluate", command=f"osmosis eval submit {evals[0]} --wait"))
    if runs:
        noun = NOUNS[runs[0]["kind"]]
        steps.append(NextStep("show the last run", command=f"osmosis {noun} show {runs[0]['name']}"))
    return steps


def _draw(console: Console, data: JsonObject) -> None:
    row = partial(print_field, console)
    row("workspace", data["workspace_directory"])
    row("rollouts", ", ".join(data["rollouts"]) or "none yet")
    broken = sum(1 for c in data["configs"] if c["errors"])
    errors = f", {broken} with errors" if broken else ""
    row("configs", f"{len(data['configs'])}{errors}", "red" if broken else "default")
    row("datasets", ", ".join(data["datasets"]) or "none in data/")
    row("git", _git_line(data["git"]))
    platform = data["platform"]
    url, note = platform["url"] or "", platform["note"] or ""
    row("platform", note if url in note else f"{url} {note}".strip())
    if (sync := data["sync"]) and sync.get("connected"):
        commit = str(sync.get("commit_sha") or "nothing yet")[:10]
        row("synced", f"{commit} of {sync.get('default_branch')} ({sync.get('status') or 'no sync yet'})")
    for run in data["runs"]:
        row("run", f"{run['name']}  {run['status']}  {run['platform_url'] or ''}")


def _git_line(git: JsonObject | None) -> str:
    if git is None:
        return "no repository"
    parts = [git.get("branch") or "detached", str(git.get("commit") or "no commit")[:10]]
    if git.get("operation"):
        parts.append(f"{git['operation']}")
    if git.get("conflicts"):
        parts.append(f"{len(git['conflicts'])} with conflicts")
    for key, word in (("ahead", "to push"), ("behind", "to pull")):
        if git.get(key):
            parts.append(f"{git[key]} {word}")
    changed = len(git.get("dirty") or []) + len(git.get("untracked") or [])
    if changed:
        parts.append(f"{changed} uncommitted")
    return ", ".join(parts) + (f" -> {git['remote_url']}" if git.get("remote_url") else ", no remote")


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
        return compare_sync()
    ctx = current()
    source = _source(ctx)
    client = ctx.client()
    if not client.sync.state().connected:
        problem = preflight.unknown_remote(source)
        raise NotFound(problem.what, hint=problem.fix)
    if not wait:
        client.sync.start()
        state = client.sync.state()
    elif source is not None and source.commit:
        head = preflight.detached(source, source.default_branch) if source.detached else None
        if finding := head or preflight.unpushed(source):
            raise Conflict(finding.what, hint=finding.fix)
        commit, branch = source.commit, source.branch

        def report(status: str) -> None:
            ctx.output.say(f"waiting for the platform to sync {commit[:10]} ({status})")

        state = client.sync.wait_for(commit, branch, timeout_s=timeout, report=report)
    else:
        state = client.sync.wait_until_done(timeout_s=timeout)
    body = _body(state, source)
    synced = state.synced(source.branch if source else None)
    have = f"the platform has {synced[:10]}" if synced else "the platform has no commit yet"
    message = f"{have} of {(source.branch if source else None) or state.default_branch}"
    return OperationResult("sync.start", message, body, next_steps=_steps(state, source))


def compare_sync() -> DetailResult:
    ctx = current()
    source = _source(ctx)
    state = ctx.client().sync.state(rollouts=True)
    body = _body(state, source)
    steps = _steps(state, source)
    return DetailResult(body, title="Git Sync", human=lambda console: _draw_sync(console, body), next_steps=steps)


def _draw_sync(console: Console, body: JsonObject) -> None:
    platform, checkout = body["platform"], body["here"]

    row = partial(print_field, console)
    repository = platform["repository"] if platform["connected"] else "does not know this repository"
    row("platform", f"{repository} ({platform['status'] or 'no sync yet'})")
    for branch, commit in platform["branches"].items():
        default = " (default)" if branch == platform["default_branch"] else ""
        row("", f"{commit[:10]} {branch}{default}")
    if platform["rollouts"]:
        row("rollouts", ", ".join(platform["rollouts"]))
    for kind, label in _LABELS.items():
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


def _body(state: SyncState, source: Source | None) -> dict[str, object]:
    checkout = source.to_dict() if source else None
    differing = [p.what for p in preflight.list_differences(source, state)] if source else []
    platform = state.model_dump(exclude={"found", "events"})
    platform |= {"found": [finding.to_dict() for finding in state.found], "events": state.events[:10]}
    in_sync = source is not None and not differing
    return {"platform": platform, "here": checkout, "in_sync": in_sync, "differences": differing}


def _steps(state: SyncState, source: Source | None) -> list[NextStep]:
    step = preflight.next_step(source, state) if source else None
    return [NextStep(step[0], command=step[1])] if step else []
