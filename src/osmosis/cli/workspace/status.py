from collections.abc import Mapping, Sequence
from functools import partial

from rich.console import Console

from osmosis.base.jsonable import JsonObject
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.render import print_field
from osmosis.cli.core.results import DetailResult, NextStep
from osmosis.errors import OsmosisError
from osmosis.records.run.source import Source, SyncState
from osmosis.records.run.status import NOUNS
from osmosis.workspace import findings
from osmosis.workspace.config_file import ConfigFile, check_file
from osmosis.workspace.git import read_source
from osmosis.workspace.layout import Workspace, find_workspace


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
        with ctx.client() as client:
            facts["reachable"] = client.healthy()
            if not facts["reachable"]:
                facts["note"] = "not reachable"
                return None, [], facts
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
    if step := findings.next_step(source, state):
        return [NextStep(step[0], command=step[1])]
    if state is None:
        return [NextStep("start the platform", command=platform.get("hint") or "osmosis platform start")]
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
    row("platform", f"{platform['url'] or ''} {platform['note'] or ''}".strip())
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
