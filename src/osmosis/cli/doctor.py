"""`osmosis doctor`: one report of everything that could be wrong, each finding with its fix.

Puts together what the workspace says (`workspace.doctor`), what the platform says, and, with `--imports`, what
each rollout's own environment says. A part that cannot be asked is a finding, never a crash.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis._version import __version__
from osmosis.base.git import Git, GitError
from osmosis.base.json_types import JsonObject
from osmosis.errors import AuthRequired, OsmosisError, WorkspaceRequired
from osmosis.records.problem import Problem
from osmosis.records.source import Source
from osmosis.workspace import doctor as checks
from osmosis.workspace import findings
from osmosis.workspace.config_file import ConfigFile, check_file
from osmosis.workspace.layout import FILES, FOLDERS, Workspace, find_workspace

from .connect import login_of
from .context import AppContext, current
from .drawing import Canvas, Line
from .import_check import check_imports
from .results import DetailResult, NextStep, clean

if TYPE_CHECKING:
    from osmosis.client import PlatformClient

_ORDER = ("error", "warning", "info")


def doctor(
    path: Annotated[Path | None, typer.Argument(help="A folder in the workspace [default: the current folder]")] = None,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix", help="Create missing files and refresh generated ones; your own files are never overwritten."
        ),
    ] = False,
    imports: Annotated[
        bool,
        typer.Option("--imports", help="Also import each entrypoint in its own environment (created when missing)."),
    ] = False,
) -> DetailResult:
    """Check the workspace, git, this machine and the platform for problems. Exits with 1 when there is an error.

    Example:

        osmosis doctor
        osmosis doctor --fix
        osmosis doctor --imports
    """
    ctx = current()
    start = ctx.path(path) if path else ctx.cwd
    problems = checks.machine(ctx.environ)
    workspace: Workspace | None = None
    source: Source | None = None
    fixed: list[str] = []
    try:
        workspace = find_workspace(start)
    except WorkspaceRequired as error:
        problems.append(_from_error(error, "no-workspace", "warning"))
    if workspace is not None:
        source = checks.source_of(workspace)
        if fix:
            fixed = checks.repair(workspace, source)
        problems = [*checks.diagnose(workspace, source), *problems]
    platform, said = _platform(ctx, workspace, source)
    problems += said
    if imports and workspace is not None:
        problems += _imports(ctx, workspace)
    problems.sort(key=lambda p: _ORDER.index(p.severity))
    data = _data(workspace, source, problems, platform)
    data |= {"required_paths": [*FOLDERS, *FILES], "fixed": fixed, "imports_checked": imports}
    steps = [NextStep("import every entrypoint too", command="osmosis doctor --imports")] if not imports else []
    if not fix and any("doctor --fix" in p.fix for p in problems):
        steps.insert(0, NextStep("fix what can be fixed automatically", command="osmosis doctor --fix"))
    return DetailResult(
        data,
        title="Doctor",
        human=lambda console: _draw(console, data, problems),
        exit_code=1 if any(p.severity == "error" for p in problems) else 0,
        next_steps=steps,
    )


def _data(
    workspace: Workspace | None, source: Source | None, problems: list[Problem], platform: Mapping[str, object]
) -> dict[str, object]:
    """The report as data: the keys clients of the platform know, and every finding."""
    return {
        "version": __version__,
        "workspace_directory": str(workspace.root) if workspace else None,
        "missing": [p.where for p in problems if p.code in ("missing-folder", "missing-file")],
        "valid": workspace is not None and not any(p.severity == "error" for p in problems),
        "git": source and {"identity": source.identity, "remote_url": source.remote_url, "branch": source.branch},
        "platform": platform,
        "workspace": platform.get("workspace"),
        "findings": [p.to_dict() for p in problems],
    }


def _from_error(error: OsmosisError, code: str, severity: str, where: str = "") -> Problem:
    return Problem.model_validate(
        {"code": code, "what": error.message, "where": where, "fix": error.hint or "", "severity": severity}
    )


def _platform(
    ctx: AppContext, workspace: Workspace | None, source: Source | None
) -> tuple[dict[str, object], list[Problem]]:
    """What the platform says of this person, this workspace, its secrets, datasets and sync state."""
    facts: JsonObject = {"url": None, "reachable": False, "version": None, "logged_in": False, "credentials": None}
    try:
        facts["url"] = ctx.platform_url
        login = login_of(ctx)
        facts["credentials"] = login.store if login else None
        facts["logged_in"] = bool(login and not login.expired)
        with ctx.client(auth=facts["logged_in"]) as client:
            health = client.http.health()
            facts["reachable"], facts["version"] = health is not None, (health or {}).get("version")
            if health is None:
                what = f"the platform at {client.url} is not responding"
                problem = Problem(
                    code="no-platform", what=what, where="platform", fix="osmosis platform start", severity="warning"
                )
                return facts, [problem]
            if not facts["logged_in"]:
                state = "the login has expired:" if login else "not logged in to"
                what = f"{state} {client.url}"
                problem = Problem(code="no-login", what=what, where="platform", fix="osmosis login", severity="warning")
                return facts, [problem]
            found = [*_version(client.url, facts["version"]), *_logged_in(client, workspace, source, facts)]
            return facts, found
    except OsmosisError as error:
        if facts["url"]:
            with ctx.client(auth=False, scoped=False) as client:
                facts["reachable"] = client.healthy()
        severity = "warning" if isinstance(error, AuthRequired) else "error"
        return facts, [_from_error(error, "platform", severity, "platform")]


def _version(url: str, version: str | None) -> Iterable[Problem]:
    if version and version.partition("+")[0] != __version__.partition("+")[0]:
        what = f"the platform runs version {version}, this tool is {__version__}"
        fix = "install the same version on both sides"
        yield Problem(code="version", what=what, where=url, fix=fix, severity="info")


def _helper(client: PlatformClient, workspace: Workspace, source: Source) -> Iterable[Problem]:
    """The credential helper of a hosted repository: there, and its Python still there."""
    if not (source.remote_url or "").startswith(f"{client.url}/git/"):
        return
    try:
        found = Git(workspace.root).text("config", "--get-all", f"credential.{client.url}.helper")
    except GitError:
        found = ""
    ours = next((line for line in found.splitlines() if "osmosis.cli.git_credential" in line), "")
    words = shlex.split(ours.removeprefix("!"))
    if "-m" not in words or not Path(words[words.index("-m") - 1]).exists():
        what = "git has no working credential helper for this platform: pushes will ask for a password"
        fix = "osmosis init --here --platform"
        yield Problem(code="no-helper", what=what, where="git", fix=fix, severity="warning")


def _logged_in(
    client: PlatformClient,
    workspace: Workspace | None,
    source: Source | None,
    facts: dict[str, object],
) -> Iterable[Problem]:
    if workspace is None or source is None or source.identity is None:
        return
    state = client.sync.state(rollouts=True)
    if not state.connected:
        yield findings.softer(findings.unknown_remote(source))
        return
    yield from _helper(client, workspace, source)
    workspace_of = client.accounts.verify().workspace
    facts["workspace"] = workspace_of.to_dict() if workspace_of else None
    facts["sync"] = {"status": state.status, "commit_sha": state.commit_sha, "branches": state.branches}
    if state.status == "Failed":
        yield findings.failed_sync(state)
    elif source.commit and not source.ahead:
        yield from (findings.softer(p) for p in findings.differences(source, state) if p.code == "not-synced")
    yield from _names(client, workspace)


def _names(client: PlatformClient, workspace: Workspace) -> Iterable[Problem]:
    """Datasets and secrets that configs name and the platform does not have."""
    datasets = {row.file_name: row.status for row in client.datasets.all()}
    secrets = {row.name for row in client.secrets.all()}
    said: set[tuple[str, str]] = set()

    def once(problem: Problem, name: str) -> Iterator[Problem]:
        # An eval config and a training config often name the same: one thing to do, said once.
        if (problem.code, name) not in said:
            said.add((problem.code, name))
            yield problem

    for kind, path in workspace.configs():
        file = ConfigFile(kind, path, workspace.relative(path))
        config, _ = check_file(file, workspace)
        if config is None:
            continue
        name = config.experiment.dataset
        where = f"{file.where('experiment.dataset')}: experiment.dataset"
        if name not in datasets:
            local = workspace.local_dataset(name)
            fix = f"osmosis dataset upload {workspace.relative(local)}" if local else "osmosis dataset list"
            what = f"the platform has no dataset {name}"
            yield from once(Problem(code="no-dataset", what=what, where=where, fix=fix, severity="warning"), name)
        elif datasets[name] not in ("uploaded", None):
            what = f"the dataset {name} is {datasets[name]}, not ready"
            fix = f"osmosis dataset info {name}"
            found = Problem(code="dataset-not-ready", what=what, where=where, fix=fix, severity="warning")
            yield from once(found, name)
        for secret in config.secret_names():
            if secret not in secrets:
                where = f"{file.where('secrets.required')}: secrets.required"
                what, fix = f"the secret {secret} is not registered", f"osmosis secret set {secret}"
                found = Problem(code="no-secret", what=what, where=where, fix=fix, severity="warning")
                yield from once(found, secret)


def _imports(ctx: AppContext, workspace: Workspace) -> list[Problem]:
    """Make each rollout's environment and import its entrypoint there, in a process of its own."""
    uv = checks.find_uv(ctx.environ)
    if uv is None:
        return []  # `machine` has said that uv is missing
    return check_imports(ctx, workspace, uv)


def _draw(console: Canvas, data: JsonObject, problems: list[Problem]) -> None:
    place = data["workspace_directory"] or "no workspace"
    platform = data["platform"]
    reach = "reachable" if platform["reachable"] else "not reachable"
    login = f"logged in (stored in: {platform['credentials']})" if platform["logged_in"] else "not logged in"
    console.print(Line(clean(f"workspace  {place}")))
    console.print(Line(clean(f"platform   {platform['url']}: {reach}, {login}")))
    for line in data["fixed"]:
        console.print(Line(clean(f"fixed      {line}"), style="green"))
    draw_problems(console, problems)


def draw_problems(console: Canvas, problems: list[Problem]) -> None:
    """The findings for people, each with what to type next."""
    styles = {"error": "red", "warning": "yellow", "info": "dim"}
    for problem in problems:
        where = f"{problem.where}: " if problem.where else ""
        line = Line(f"{problem.severity:<10} ", style=styles[problem.severity])
        line.append(clean(f"{where}{problem.what}"), style="default")
        console.print(line)
        if problem.fix:
            console.print(Line(clean(f"           {problem.fix}"), style="cyan"))
    if not any(p.severity != "info" for p in problems):
        console.print(Line("no problems found", style="green"))
