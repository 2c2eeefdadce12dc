"""`osmosis quickstart`: from an empty folder to a scored run, by the commands a person would type.

Everything stays inside one folder. Stopped at any point, the same command goes on where it stopped; run again, it
makes a new run in the same workspace.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from osmosis.base.git import Git
from osmosis.cli import prompts
from osmosis.cli.context import AppContext, current
from osmosis.cli.output import Mode
from osmosis.cli.results import NextStep, OperationResult, Result
from osmosis.client import PlatformClient
from osmosis.errors import ValidationError
from osmosis.workspace.config_file import load_eval_config
from osmosis.workspace.git import read_source
from osmosis.workspace.gitwrite import identity_options

from .choose_model import ModelChoice, choose_model
from .steps import Demo, StepDeclined

ROLLOUT = "multiply"
CONFIG = f"configs/eval/{ROLLOUT}.toml"
DATA = f"data/{ROLLOUT}.jsonl"
SYNC_TIMEOUT_S = 60.0
DEMO = "osmosis-demo"
_FOLDERS = ("OSMOSIS_DATA_DIR", "OSMOSIS_CONFIG_DIR")
_ELSEWHERE = ("OSMOSIS_PLATFORM_URL", "OSMOSIS_TOKEN", "OSMOSIS_TOKEN_PLATFORM_URL", "OSMOSIS_DATABASE_URL")


def quickstart(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Run every step without asking")] = False,
    folder: Annotated[Path, typer.Option("--dir", help="Folder for everything the demo creates")] = Path(DEMO),
    model: Annotated[
        str | None, typer.Option("--model", help="Model to evaluate [default: one whose API key is set, else offline]")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option("--base-url", help="OpenAI-compatible endpoint that serves the model")
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option("--api-key-env", help="Environment variable with the endpoint's API key")
    ] = None,
) -> OperationResult:
    """Go from an empty folder to a scored run: platform, login, workspace, rollout, dataset, push, evaluation.

    Each step is printed as the command you would type. Without a model or an API key, an offline stand-in is used.

    Example:
        osmosis quickstart
        osmosis quickstart --yes --dir /tmp/demo
        osmosis quickstart --base-url http://127.0.0.1:8000/v1 --model qwen3
    """
    ctx = current()
    if not yes:
        prompts.require_person(ctx, "quickstart asks before each step", ["--yes"])
    choice = choose_model(ctx, model=model, base_url=base_url, api_key_env=api_key_env, yes=yes)
    demo = _demo(ctx, folder, yes=yes)
    try:
        result = _walk(demo, choice)
    except StepDeclined:
        return demo.declined()
    except KeyboardInterrupt:
        ctx.output.say("stopped; run the same command to continue", style="yellow")
        raise
    return _finished(demo, choice, result)


def _demo(ctx: AppContext, folder: Path, *, yes: bool) -> Demo:
    root = ctx.path(folder).absolute()
    if root.exists() and not root.is_dir():
        raise ValidationError(f"{root} is a file", hint="osmosis quickstart --dir FOLDER")
    environ = dict(ctx.environ)
    if not ctx.options.platform:
        for name in _ELSEWHERE:
            environ.pop(name, None)
        environ |= {"OSMOSIS_DATA_DIR": str(root / "platform"), "OSMOSIS_CONFIG_DIR": str(root / "config")}
    return Demo(ctx, root, root / (ctx.options.workspace or "demo"), environ, yes, cwd=ctx.cwd)


def _walk(demo: Demo, choice: ModelChoice) -> Result:
    """The seven steps."""
    demo.line("From an empty folder to a scored run. Everything is created in this folder:")
    demo.line(f"  {demo.root}")
    demo.line(f"Model: {choice.note}")
    try:
        demo.root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValidationError(f"cannot make {demo.root}: {error.strerror}", hint="--dir FOLDER") from error
    _platform(demo)
    demo.heading(2, "Log in")
    demo.osmosis("login")
    demo.heading(3, "Create a workspace: a folder, a git repository, its connection to the platform")
    _workspace(demo)
    demo.heading(4, "Create a rollout: an agent that multiplies with a tool, its grader, configs and data")
    _rollout(demo, choice)
    demo.heading(5, "Upload the dataset, push the code")
    _send(demo, choice)
    demo.heading(6, "Evaluate: run every row several times and grade each attempt")
    result = _evaluate(demo)
    demo.line()
    demo.line("7/7  Done: the results are above, the page shows every conversation", style="bold")
    return result


def _platform(demo: Demo) -> None:
    if demo.ctx.options.platform:
        demo.heading(1, f"Use the platform at {demo.ctx.platform_url}")
        demo.osmosis("platform", "status")
        return
    demo.heading(1, "Start the platform, in the background, on this machine")
    for name in _FOLDERS:
        demo.line(f"$ export {name}={shlex.quote(demo.environ[name])}", style="cyan")
    demo.osmosis("platform", "start")


def _workspace(demo: Demo) -> None:
    demo.change_dir(demo.root)
    name = demo.workspace.name
    if not demo.workspace.exists():
        demo.osmosis("init", name)
        demo.change_dir(demo.workspace)
        return
    demo.change_dir(demo.workspace)
    if _connected(demo):
        demo.note(f"workspace {name} already exists and is used again")
    else:
        demo.osmosis("init", "--here", "--platform")


def _connected(demo: Demo) -> bool:
    """Is `origin` the repository that the platform has for this workspace, at its present address."""
    source = read_source(demo.workspace) if (demo.workspace / ".git").exists() else None
    if source is None or not source.remote_url or not source.upstream:
        return False
    with _client(demo, scoped=False) as client:
        row = client.workspaces.find(demo.workspace.name)
    return row is not None and source.remote_url == row.repository_url


def _client(demo: Demo, *, scoped: bool = True) -> PlatformClient:
    return replace(demo.ctx, environ=demo.environ, cwd=demo.workspace).client(scoped=scoped)


def _rollout(demo: Demo, choice: ModelChoice) -> None:
    words = ["rollout", "new", ROLLOUT, "--template", ROLLOUT, *choice.flags()]
    made = (demo.workspace / CONFIG).is_file() and (demo.workspace / "rollouts" / ROLLOUT / "main.py").is_file()
    if not made:
        # A step that was stopped half-way may have left some of the files.
        partly = (demo.workspace / "rollouts" / ROLLOUT).exists() or (demo.workspace / CONFIG).exists()
        demo.osmosis(*words, *(["--force"] if partly else []))
    elif _same_model(demo, choice):
        demo.note(f"rollout {ROLLOUT} already exists")
    elif _clean(demo):
        demo.note("the config is for another model: the rollout is created again, the old files stay in git's history")
        demo.osmosis(*words, "--force")
    else:
        raise ValidationError(
            f"{CONFIG} is for another model, and there are uncommitted changes",
            hint=f"cd {demo.workspace} && git commit -am 'my changes', then the same command again",
        )
    if not _three_attempts(demo):
        demo.osmosis("config", "set", CONFIG, "evaluation.n", "3")


def _config(demo: Demo) -> Any:
    return load_eval_config(demo.workspace / CONFIG, demo.workspace)[0]


def _same_model(demo: Demo, choice: ModelChoice) -> bool:
    config = _config(demo)
    return bool(config.experiment.model_path == choice.name and config.advanced.base_url == choice.base_url)


def _three_attempts(demo: Demo) -> bool:
    return bool(_config(demo).evaluation.n >= 3)


def _clean(demo: Demo) -> bool:
    return not Git(demo.workspace).text("status", "--porcelain")


def _send(demo: Demo, choice: ModelChoice) -> None:
    demo.osmosis("dataset", "upload", DATA, "--overwrite", "--yes", shown=["dataset", "upload", DATA])
    if choice.secret:
        demo.osmosis("secret", "set", choice.secret, "--env", choice.secret)
    if _clean(demo):
        demo.note("nothing new to commit")
    else:
        demo.git("add", "-A")
        demo.git("commit", "-q", "-m", f"Add {ROLLOUT}", options=identity_options(demo.workspace))
    demo.git("push", "-q", "-u", "origin", "HEAD")
    _synced(demo)


def _synced(demo: Demo) -> None:
    """Wait until Git Sync has seen the push, and show what it found."""
    source = read_source(demo.workspace)
    if source is not None and source.commit is not None:
        with _client(demo) as client:
            client.sync.wait_for(source.commit, timeout_s=SYNC_TIMEOUT_S)
    demo.osmosis("sync", "status", human=_sync_lines)


def _sync_lines(result: Result) -> dict[str, object]:
    """Of all that `sync status` says, what matters here."""
    platform = result.envelope()["data"].get("platform") or {}
    return {
        "Git Sync": platform.get("status"),
        "branch": platform.get("default_branch"),
        "commit": str(platform.get("commit_sha") or "")[:12],
        "rollouts found": ", ".join(platform.get("rollouts") or []),
    }


def _evaluate(demo: Demo) -> Result:
    with _client(demo) as client:
        rows = client.evals.page(limit=1).rows
    if rows and rows[0].status in ("pending", "running"):
        name = rows[0].name
        demo.note(f"run {name} is already in progress; following it")
        return demo.osmosis("eval", "wait", name)
    if rows:
        demo.note(f"there are earlier runs (the last is {rows[0].name}): this is a new one in the same workspace")
    return demo.osmosis("eval", "submit", CONFIG, "--yes", "--wait")


def _path_entry(demo: Demo) -> list[str]:
    """What makes `osmosis` a command in the person's shell, when it is none yet."""
    if shutil.which("osmosis", path=demo.environ.get("PATH", "")):
        return []
    return [f"PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"]


def _finished(demo: Demo, choice: ModelChoice, result: Result) -> OperationResult:
    assert isinstance(result, OperationResult)
    run = result.resource
    summary = run.get("summary") or {}
    rate = summary.get("pass_rate")
    shown = "no pass rate" if rate is None else f"pass rate {rate:.4f}"
    message = f"run {run.get('name')} is {run.get('status')}: {shown} ({choice.note})"
    exports = {} if demo.ctx.options.platform else {name: demo.environ[name] for name in _FOLDERS}
    resource: dict[str, object] = {
        "run": {key: run.get(key) for key in ("id", "name", "status", "url")},
        "summary": summary,
        "model": choice.name,
        "stand_in": choice.name.startswith("offline/"),
        "workspace_directory": str(demo.workspace),
        "environment": exports,
    }
    if demo.ctx.mode is Mode.JSON:
        resource["steps"] = demo.done
    enter = " ".join([f"{name}={shlex.quote(value)}" for name, value in exports.items()] + _path_entry(demo))
    steps = [NextStep("the run's page", url=str(run.get("url")))]
    if enter:
        steps.append(NextStep("first, in this shell", command=f"export {enter}"))
    steps += [
        NextStep("open the platform in your browser", command="osmosis platform open"),
        NextStep("list the runs", command=f"cd {shlex.quote(str(demo.workspace))} && osmosis eval list"),
        NextStep("print the figures as JSON", command=f"osmosis eval info {run.get('name')} --json"),
        NextStep("stop the platform", command="osmosis platform stop"),
    ]
    return OperationResult("quickstart", message, resource, exit_code=result.exit_code, next_steps=steps)
