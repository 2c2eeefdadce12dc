"""`osmosis doctor`: findings, each with its fix; a part that cannot be checked is a finding too."""

import asyncio
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

from rich.console import Console
from typer import Argument, Option

from osmosis._version import __version__
from osmosis.base import paths
from osmosis.base.git import Git, GitError
from osmosis.base.installation import build_wheel, upgrade_command
from osmosis.base.jsonable import JsonObject
from osmosis.cli.core.connect import login_of
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.render import draw_problems, print_text
from osmosis.cli.core.results import DetailResult, NextStep, OperationResult
from osmosis.cli.platform.commands import doctor as platform_doctor
from osmosis.client import PlatformClient
from osmosis.errors import AuthRequired, NetworkError, OsmosisError, WorkspaceRequired
from osmosis.jobs.context import JobLog
from osmosis.jobs.prepare.environment import Builder
from osmosis.jobs.prepare.project import read_project
from osmosis.records.base import Problem
from osmosis.records.run.source import Source
from osmosis.workspace import doctor as checks, preflight
from osmosis.workspace.config_file import ConfigFile, check_file
from osmosis.workspace.layout import FILES, FOLDERS, RolloutFolder, Workspace, find_workspace


def doctor(
    path: Annotated[Path | None, Argument(help="A folder in the workspace [default: the current folder]")] = None,
    fix: Annotated[bool, Option(help="Create missing files and refresh generated ones, never your own.")] = False,
    imports: Annotated[bool, Option(help="Also import each entrypoint in its environment (made if missing).")] = False,
    platform: Annotated[bool, Option(help="Check the platform of this machine instead, from its data folder.")] = False,
) -> DetailResult:
    """Check the workspace, git, this machine and the platform for problems. Exits with 1 when there is an error.

    Example:
        osmosis doctor
        osmosis doctor --fix
        osmosis doctor --platform
        osmosis doctor --imports
    """
    if platform:
        return platform_doctor()
    ctx = current()
    start = ctx.path(path) if path else ctx.cwd
    problems = checks.check_machine(ctx.environ)
    workspace: Workspace | None = None
    source: Source | None = None
    fixed: list[str] = []
    try:
        workspace = find_workspace(start)
    except WorkspaceRequired as error:
        problems.append(_from_error(error, "no-workspace", "warning"))
    if workspace is not None:
        source = checks.try_read_source(workspace)
        if fix:
            fixed = checks.repair(workspace, source)
        problems = [*checks.diagnose(workspace, source), *problems]
    platform_facts, platform_problems = _platform(ctx, workspace, source)
    problems += platform_problems
    if imports and workspace is not None:
        problems += check_imports(ctx, workspace)
    problems.sort(key=lambda p: ("error", "warning", "info").index(p.severity))
    data = _data(workspace, source, problems, platform_facts)
    data |= {"required_paths": [*FOLDERS, *FILES], "fixed": fixed, "imports_checked": imports}
    again = workspace is not None and not imports
    steps = [NextStep("import every entrypoint too", command="osmosis doctor --imports")] if again else []
    if not fix and any("doctor --fix" in p.fix for p in problems):
        steps.insert(0, NextStep("fix what can be fixed automatically", command="osmosis doctor --fix"))
    draw, code = partial(_draw, data=data, problems=problems), int(any(p.severity == "error" for p in problems))
    return DetailResult(data, title="Doctor", human=draw, exit_code=code, next_steps=steps)


def _data(
    workspace: Workspace | None, source: Source | None, problems: list[Problem], platform: Mapping[str, object]
) -> dict[str, object]:
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
    facts: JsonObject = {"url": None, "reachable": False, "version": None, "logged_in": False, "credentials": None}
    try:
        facts["url"] = ctx.platform_url
        login = login_of(ctx)
        facts["credentials"] = login.store if login else None
        facts["logged_in"] = bool(login and not login.expired)
        client = ctx.client(auth=facts["logged_in"])
        health = client.health()
        facts["reachable"], facts["version"] = True, health.get("version")
        if not facts["logged_in"]:
            state = "the login has expired:" if login else "not logged in to"
            return facts, [Problem.warning("no-login", f"{state} {client.url}", "platform", "osmosis login")]
        return facts, [*_version(client.url, facts["version"]), *_logged_in(client, workspace, source, facts)]
    except OsmosisError as error:
        if facts["url"]:
            facts["reachable"] = ctx.client(auth=False, scoped=False).healthy()
        is_down = isinstance(error, NetworkError)
        severity = "warning" if is_down or isinstance(error, AuthRequired) else "error"
        return facts, [_from_error(error, "no-platform" if is_down else "platform", severity, "platform")]


def _version(url: str, version: str | None) -> Iterable[Problem]:
    if version and version.partition("+")[0] != __version__.partition("+")[0]:
        fix = "install the same version on both sides"
        yield Problem.info("version", f"the platform runs version {version}, this tool is {__version__}", url, fix)


def _helper(client: PlatformClient, workspace: Workspace, source: Source) -> Iterable[Problem]:
    if not (source.remote_url or "").startswith(f"{client.url}/git/"):
        return
    try:
        helpers = Git(workspace.root).text("config", "--get-all", f"credential.{client.url}.helper")
    except GitError:
        helpers = ""
    ours = next((line for line in helpers.splitlines() if "osmosis.cli.git_credential" in line), "")
    words = shlex.split(ours.removeprefix("!"))
    if "-m" not in words or not Path(words[words.index("-m") - 1]).exists():
        message = "git has no working credential helper for this platform: pushes will ask for a password"
        yield Problem.warning("no-helper", message, "git", "osmosis init --here --platform")


def _logged_in(
    client: PlatformClient, workspace: Workspace | None, source: Source | None, facts: dict[str, object]
) -> Iterable[Problem]:
    if workspace is None or source is None or source.identity is None:
        return
    state = client.sync.state(rollouts=True)
    if not state.connected:
        yield preflight.as_warning(preflight.unknown_remote(source))
        return
    yield from _helper(client, workspace, source)
    workspace_of = client.accounts.verify().workspace
    facts["workspace"] = workspace_of.to_dict() if workspace_of else None
    facts["sync"] = {"status": state.status, "commit_sha": state.commit_sha, "branches": state.branches}
    if state.status == "Failed":
        yield preflight.failed_sync(state)
    elif source.commit and not source.ahead:
        yield from (
            preflight.as_warning(p) for p in preflight.list_differences(source, state) if p.code == "not-synced"
        )
    yield from _names(client, workspace)


def _names(client: PlatformClient, workspace: Workspace) -> Iterable[Problem]:
    datasets = {row.file_name: row.status for row in client.datasets.all()}
    secrets = {row.name for row in client.secrets.all()}
    reported: set[tuple[str, str]] = set()

    def once(problem: Problem, name: str) -> Iterator[Problem]:
        # An eval config and a training config often name the same: one thing to do, said once.
        if (problem.code, name) not in reported:
            reported.add((problem.code, name))
            yield problem

    for kind, path in workspace.configs():
        file = ConfigFile(kind, path, workspace.relative(path))
        config, _ = check_file(file, workspace)
        if config is None:
            continue
        for table, environment in config.environments.items():
            name, key = environment.dataset, f"{table}.dataset"
            where = f"{file.where(key)}: {key}"
            if name not in datasets:
                local = workspace.local_dataset(name)
                fix = f"osmosis dataset upload {workspace.relative(local)}" if local else "osmosis dataset list"
                message = f"the platform has no dataset {name}"
                yield from once(Problem.warning("no-dataset", message, where, fix), name)
            elif datasets[name] not in ("uploaded", None):
                message, fix = f"the dataset {name} is {datasets[name]}, not ready", f"osmosis dataset show {name}"
                yield from once(Problem.warning("dataset-not-ready", message, where, fix), name)
        for secret in config.secret_names():
            if secret not in secrets:
                where = f"{file.where('secrets.required')}: secrets.required"
                message, fix = f"the secret {secret} is not registered", f"osmosis secret set {secret}"
                problem = Problem.warning("no-secret", message, where, fix)
                yield from once(problem, secret)


def _draw(console: Console, data: JsonObject, problems: list[Problem]) -> None:
    folder = data["workspace_directory"] or "no workspace"
    platform = data["platform"]
    reach = "reachable" if platform["reachable"] else "not reachable"
    login = f"logged in (stored in: {platform['credentials']})" if platform["logged_in"] else "not logged in"
    print_text(console, f"workspace  {folder}")
    print_text(console, f"platform   {platform['url']}: {reach}, {login}")
    for line in data["fixed"]:
        print_text(console, f"fixed      {line}", "green")
    draw_problems(console, problems)


IMPORT_TIMEOUT_S = 120
# As a module called `main`, not as a script: what stands under `if __name__ == "__main__"` must not run.
_PROGRAM = "import runpy, sys; sys.path.insert(0, '.'); runpy.run_path(sys.argv[1], run_name='main')"


def check_imports(ctx: AppContext, workspace: Workspace) -> list[Problem]:
    problems: list[Problem] = []
    uv = checks.find_uv(ctx.environ)
    if uv is None:
        return problems  # `machine` has said that uv is missing
    for rollout in workspace.rollouts():
        if rollout.entrypoint is None:
            continue
        ctx.output.say(f"importing rollouts/{rollout.name}/main.py in its own environment")
        if (problem := _check(ctx, rollout, uv)) is not None:
            problems.append(problem)
    return problems


def _check(ctx: AppContext, rollout: RolloutFolder, uv: str) -> Problem | None:
    where = f"rollouts/{rollout.name}"
    try:
        cache = paths.cache_dir(ctx.environ)
        log = JobLog(None, lambda _: None)
        builder = Builder(uv=uv, cache_dir=cache, wheel=build_wheel(cache), environ=ctx.environ, log=log)
        project = read_project(rollout.path, where)
        install_to = cache / "imports" / rollout.name
        environment = asyncio.run(builder.environment(project, commit_sha="", install_to=install_to))
    except OsmosisError as error:
        message = f"its environment cannot be created: {error.message}"
        fix = error.hint or f"correct {where}/pyproject.toml"
        return Problem.error("environment", message, f"{where}/pyproject.toml", fix)
    command = [str(environment.python), "-c", _PROGRAM, "main.py"]
    environ = {**ctx.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    if environment.project:
        environ["PYTHONPATH"] = str(environment.project)
    try:
        done = subprocess.run(
            command, cwd=rollout.path, env=environ, capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        message = f"importing it took longer than {IMPORT_TIMEOUT_S} s"
        fix = 'start servers and slow work under `if __name__ == "__main__":`'
        return Problem.error("import-slow", message, f"{where}/main.py", fix)
    if done.returncode == 0:
        return None
    tail = [line for line in done.stderr.strip().splitlines() if line.strip()]
    message = f"importing it failed: {tail[-1] if tail else f'exit code {done.returncode}'}"
    source_line = next((line.strip() for line in reversed(tail) if line.strip().startswith("File ")), "")
    fix = f"see {source_line}" if source_line else f"correct {where}/main.py"
    if "ModuleNotFoundError" in message:
        fix = f"add the package to dependencies in {where}/pyproject.toml"
    return Problem.error("import-failed", message, f"{where}/main.py", fix)


def upgrade() -> OperationResult:
    """Show how to upgrade this installation; osmosis replaces no packages by itself.

    Example:
        osmosis upgrade
    """
    steps = [NextStep("upgrade it", command=upgrade_command())]
    return OperationResult("upgrade", f"this is osmosis-ai {__version__}", {"version": __version__}, next_steps=steps)
