"""`osmosis quickstart`: the commands a person would type, inside one folder; the same command continues."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from typer import Option

from osmosis.base.git import Git, GitError, to_valid_text, users_environ
from osmosis.base.net import is_http
from osmosis.cli.core import prompts
from osmosis.cli.core.context import AppContext, GlobalOptions, current, using
from osmosis.cli.core.output import Mode
from osmosis.cli.core.results import NextStep, OperationResult, Result
from osmosis.cli.main import run
from osmosis.client import PlatformClient
from osmosis.errors import PlatformError, UsageError, ValidationError
from osmosis.metrics.formats import percent
from osmosis.records.config.run_config import EvalConfig
from osmosis.records.run.plan import SMOLLM2
from osmosis.workspace.config_file import PROVIDER_KEYS, load_eval_config
from osmosis.workspace.git import identity_options, read_source

ROLLOUT = "multiply"
CONFIG = f"configs/eval/{ROLLOUT}.toml"
DATA = f"data/{ROLLOUT}.jsonl"
SYNC_TIMEOUT_S = 60.0
DEMO = "osmosis-demo"
_FOLDERS = ("OSMOSIS_DATA_DIR", "OSMOSIS_CONFIG_DIR")
_ELSEWHERE = ("OSMOSIS_PLATFORM_URL", "OSMOSIS_TOKEN", "OSMOSIS_TOKEN_PLATFORM_URL", "OSMOSIS_DATABASE_URL")


def quickstart(
    folder: Annotated[Path, Option("--dir", help="Folder for everything the demo creates")] = Path(DEMO),
    model: Annotated[str | None, Option(help="Model [default: one whose API key is set, else offline]")] = None,
    base_url: Annotated[str | None, Option(help="OpenAI-compatible endpoint that serves the model")] = None,
    api_key_env: Annotated[str | None, Option(help="Environment variable with the endpoint's API key")] = None,
    workspace: Annotated[str | None, Option("-w", hidden=True, help="The same as --workspace")] = None,
) -> OperationResult:
    """Go from an empty folder to a scored run: platform, login, workspace, rollout, dataset, push, evaluation.

    Each step is printed as the command you would type. Without a model or an API key, an offline stand-in is used.

    Example:
        osmosis quickstart
        osmosis quickstart --yes --dir /tmp/demo
        osmosis quickstart --base-url http://127.0.0.1:8000/v1 --model qwen3
    """
    ctx = current()
    if not ctx.options.yes:
        prompts.require_person(ctx, "quickstart asks before each step", ["--yes"])
    if workspace:
        ctx.options = replace(ctx.options, workspace=workspace)
    choice = choose_model(ctx, model=model, base_url=base_url, api_key_env=api_key_env)
    root = ctx.path(folder).absolute()
    if root.exists() and not root.is_dir():
        raise ValidationError(f"{root} is a file", hint="osmosis quickstart --dir FOLDER")
    environ = dict(ctx.environ)
    if not ctx.options.platform:
        for name in _ELSEWHERE:
            environ.pop(name, None)
        environ |= {"OSMOSIS_DATA_DIR": str(root / "platform"), "OSMOSIS_CONFIG_DIR": str(root / "config")}
    demo = Demo(ctx, root, root / (ctx.options.workspace or "demo"), environ, cwd=ctx.cwd)
    try:
        result = _walk(demo, choice)
    except StepDeclined:
        message = "Cancelled. Run the same command to continue."
        return OperationResult("quickstart", message, {"steps": demo.done}, status="cancelled")
    except KeyboardInterrupt:
        ctx.output.say("stopped; run the same command to continue", style="yellow")
        raise
    return _finished(demo, choice, result)


def _walk(demo: Demo, choice: ModelChoice) -> Result:
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
    rows = _client(demo).evals.page(limit=1).rows
    if rows and rows[0].status in ("pending", "running"):
        name = rows[0].name
        demo.note(f"run {name} is already in progress; following it")
        result = demo.osmosis("eval", "wait", name)
    else:
        if rows:
            demo.note(f"there are earlier runs (the last is {rows[0].name}): this is a new one in the same workspace")
        result = demo.osmosis("eval", "submit", CONFIG, "--limit", "20", "--n", "3", "--yes", "--wait")
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
    source = read_source(demo.workspace) if (demo.workspace / ".git").exists() else None
    if source is None or not source.remote_url or not source.upstream:
        return False
    row = _client(demo, scoped=False).workspaces.find(demo.workspace.name)
    return row is not None and source.remote_url == row.repository_url


def _client(demo: Demo, *, scoped: bool = True) -> PlatformClient:
    return replace(demo.ctx, environ=demo.environ, cwd=demo.workspace).client(scoped=scoped)


def _rollout(demo: Demo, choice: ModelChoice) -> None:
    words = ["rollout", "new", ROLLOUT, "--template", ROLLOUT, *choice.flags()]
    exists = (demo.workspace / CONFIG).is_file() and (demo.workspace / "rollouts" / ROLLOUT / "main.py").is_file()
    config = _config(demo) if exists else None
    if config is None:
        # A step that was stopped half-way may have left some of the files.
        partly = (demo.workspace / "rollouts" / ROLLOUT).exists() or (demo.workspace / CONFIG).exists()
        demo.osmosis(*words, *(["--force"] if partly else []))
    elif config.experiment.model_path == choice.name and config.advanced.base_url == choice.base_url:
        demo.note(f"rollout {ROLLOUT} already exists")
    elif _clean(demo):
        demo.note("the config is for another model: the rollout is created again, the old files stay in git's history")
        demo.osmosis(*words, "--force")
    else:
        hint = f"cd {demo.workspace} && git commit -am 'my changes', then the same command again"
        raise ValidationError(f"{CONFIG} is for another model, and there are uncommitted changes", hint=hint)
    if "batch_size" not in _config(demo).evaluation.model_fields_set:
        demo.osmosis("config", "set", ROLLOUT, "evaluation.batch_size", "8")


def _config(demo: Demo) -> EvalConfig:
    return load_eval_config(demo.workspace / CONFIG, demo.workspace)[0]


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
    source = read_source(demo.workspace)
    if source is not None and source.commit is not None:
        _client(demo).sync.wait_for(source.commit, timeout_s=SYNC_TIMEOUT_S)
    demo.osmosis("sync", "--status")


def _finished(demo: Demo, choice: ModelChoice, result: Result) -> OperationResult:
    assert isinstance(result, OperationResult)
    run = result.resource
    summary = run.get("summary") or {}
    rate = summary.get("pass_rate")
    rate_text = "no pass rate" if rate is None else f"pass rate {percent(rate)}"
    message = f"run {run.get('name')} is {run.get('status')}: {rate_text} ({choice.note})"
    exports = {} if demo.ctx.options.platform else {name: demo.environ[name] for name in _FOLDERS}
    resource: dict[str, object] = {
        "run": {key: run.get(key) for key in ("id", "name", "status", "url")},
        "summary": summary,
        "model": choice.name,
        "stand_in": choice.name.startswith("offline/") and choice.name != SMOLLM2,
        "workspace_directory": str(demo.workspace),
        "environment": exports,
    }
    if demo.ctx.mode is Mode.JSON:
        resource["steps"] = demo.done
    enter = [f"{name}={shlex.quote(value)}" for name, value in exports.items()]
    if not shutil.which("osmosis", path=demo.environ.get("PATH", "")):
        enter.append(f"PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH")
    steps = [NextStep("the run's page", url=str(run.get("url")))]
    if enter:
        steps.append(NextStep("first, in this shell", command=f"export {' '.join(enter)}"))
    steps += [
        NextStep("open the platform in your browser", command="osmosis platform open"),
        NextStep("list the runs", command=f"cd {shlex.quote(str(demo.workspace))} && osmosis eval list"),
        NextStep("print the figures as JSON", command=f"osmosis eval show {run.get('name')} --json"),
        NextStep("stop the platform", command="osmosis platform stop"),
    ]
    return OperationResult("quickstart", message, resource, exit_code=result.exit_code, next_steps=steps)


STAND_IN = "offline/calculator"
STAND_IN_NOTE = f"{STAND_IN} is a stand-in, not a language model: fixed rules with deliberate mistakes"
SMALL_MODELS = {
    "OPENAI_API_KEY": "openai/gpt-5-mini",
    "ANTHROPIC_API_KEY": "anthropic/claude-haiku-4-5",
    "GEMINI_API_KEY": "gemini/gemini-2.5-flash",
    "XAI_API_KEY": "xai/grok-4-fast",
    "OPENROUTER_API_KEY": "openrouter/openai/gpt-5-mini",
}


@dataclass(frozen=True)
class ModelChoice:
    name: str
    base_url: str | None = None
    secret: str | None = None

    @property
    def note(self) -> str:
        if self.name == STAND_IN:
            return STAND_IN_NOTE
        return f"{self.name} at {self.base_url}" if self.base_url else self.name

    def flags(self) -> list[str]:
        flags = [] if self.name == STAND_IN else ["--model", self.name]
        if self.base_url:
            flags += ["--base-url", self.base_url]
            flags += ["--api-key-env", self.secret] if self.secret else []
        return flags


def choose_model(ctx: AppContext, *, model: str | None, base_url: str | None, api_key_env: str | None) -> ModelChoice:
    environ = ctx.environ
    if base_url and not is_http(base_url):
        raise ValidationError(f"--base-url {base_url} is not an http URL", hint="for example http://127.0.0.1:8000/v1")
    if api_key_env and not environ.get(api_key_env):
        raise ValidationError(f"the variable {api_key_env} is not set", hint=f"export {api_key_env}=...")
    if base_url:
        if not model:
            raise UsageError("--base-url needs --model: the model's name at that endpoint")
        return ModelChoice(model, base_url, api_key_env)
    if model:
        return ModelChoice(model, None, api_key_env or provider_secret(model, environ))
    present = {name: small for name, small in SMALL_MODELS.items() if environ.get(name)}
    if ctx.options.yes or not ctx.interactive:
        return next((ModelChoice(small, None, name) for name, small in present.items()), ModelChoice(STAND_IN))
    choices = [(small, f"{small} (key from {name})") for name, small in present.items()]
    choices += [(STAND_IN, f"{STAND_IN}: a stand-in, not a language model; needs no network and no key")]
    choices += [("endpoint", "an OpenAI-compatible endpoint ...")]
    picked = prompts.choose(ctx, "Which model do you want to evaluate?", choices, flag="--model")
    if picked == "endpoint":
        url = prompts.ask(ctx, "Base URL, up to /v1", flag="--base-url", default="http://127.0.0.1:8000/v1")
        return ModelChoice(prompts.ask(ctx, "Name of the model at that endpoint", flag="--model"), url)
    return ModelChoice(picked, None, next((name for name, small in present.items() if small == picked), None))


def provider_secret(model: str, environ: Mapping[str, str]) -> str | None:
    if model.startswith("offline/"):
        return None
    name = PROVIDER_KEYS.get(model.partition("/")[0] if "/" in model else "openai")
    if name and not environ.get(name):
        raise ValidationError(f"{model} needs {name}, which is not set", hint=f"export {name}=..., or remove --model")
    return name


class StepDeclined(Exception): ...


@dataclass
class Demo:
    ctx: AppContext
    root: Path
    workspace: Path
    environ: Mapping[str, str]
    cwd: Path
    done: list[dict[str, object]] = field(default_factory=list)  # `{command, ...envelope}` per command, for `--json`

    def heading(self, number: int, text: str) -> None:
        self.line()
        self.line(f"{number}/7  {text}", style="bold")
        if not prompts.confirm(self.ctx, "Do this step?"):
            raise StepDeclined

    def line(self, text: str = "", *, style: str = "") -> None:
        if self.ctx.mode is Mode.RICH:
            from rich.text import Text

            self.ctx.output.console().print(Text(text, style=style), soft_wrap=True)
            self.ctx.output.stdout.flush()

    def change_dir(self, folder: Path) -> None:
        if folder != self.cwd:
            self.line(f"$ cd {shlex.quote(str(folder))}", style="cyan")
            self.cwd = folder

    def osmosis(self, *words: str, shown: Sequence[str] | None = None) -> Result:
        """Run one `osmosis` command here and show its result."""
        command = shlex.join(["osmosis", *(shown or words)])
        self.line(f"$ {command}", style="cyan")
        options = GlobalOptions(mode=self.ctx.mode, platform=self.ctx.options.platform)
        with using(replace(self.ctx, environ=self.environ, cwd=self.cwd, options=options)):
            result = run([*(["--platform", options.platform] if options.platform else []), *words])
        if not isinstance(result, Result):
            raise PlatformError(f"{command} gave no result")
        result.next_steps = []
        self.done.append({"command": command, **result.envelope()})
        if self.ctx.mode is Mode.RICH:
            self.ctx.output.show(result)
        return result

    def git(self, *words: str, options: Sequence[str] = ()) -> str:
        command = shlex.join(["git", *words])
        self.line(f"$ {command}", style="cyan")
        lines: list[str] = []
        try:
            out = Git(self.cwd, users_environ(self.environ)).text(*options, *words, log=lines.append)
        except GitError as error:
            error.hint = error.hint or f"cd {self.cwd} && {command}"
            raise
        text = "\n".join(filter(None, (to_valid_text(out).strip(), *lines)))
        if text:
            self.line(text, style="dim")
        self.done.append({"command": command, "output": text})
        return text

    def note(self, text: str) -> None:
        self.line(text, style="dim")
        self.done.append({"note": text})
