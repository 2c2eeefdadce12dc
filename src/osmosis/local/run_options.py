import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from osmosis.base.net import is_http
from osmosis.datasets.row_file import write_rows
from osmosis.engine.evaluate import Observer
from osmosis.engine.loader import name_of
from osmosis.errors import NotFound, UsageError, ValidationError, WorkspaceRequired
from osmosis.llm.providers import key_variable
from osmosis.records.base import utc_now
from osmosis.records.config.export import Export
from osmosis.records.run.plan import RUN_NAME, EvalPlan, ModelSpec
from osmosis.records.run.rollout import Category, Phase, RolloutStatus
from osmosis.records.run.status import match_name
from osmosis.sdk.foreign import open_foreign
from osmosis.sdk.workflow import GraderClass
from osmosis.workspace.layout import find_workspace

FAILURE_CLASSES = [*(c.value for c in Category), *(p.value for p in Phase), RolloutStatus.SKIPPED.value]
_NEED_KEYS = ("openai", "anthropic", "xai", "gemini", "openrouter", "cerebras")
_OTHER_KEYS = {"anthropic": "ANTHROPIC_AUTH_TOKEN", "gemini": "GOOGLE_API_KEY", "openrouter": "OR_API_KEY"}

ScoreFunction = Callable[..., Any]

Confirm = Callable[[str], bool]  # Asks a person and waits for the answer; called in a thread while a run goes on


class Watcher(Observer):
    def say(self, text: str, *, keep: bool = False) -> None: ...


@dataclass(frozen=True)
class RunOptions:
    """One local run beside its plan; flags and the Python API fill it, nothing else is stored than `facts`."""

    base_dir: Path
    runs_dir: Path | None  # Parent of the run's folder; None stores nothing
    environ: Mapping[str, str] = field(repr=False)
    agent: object | None = None
    functions: Mapping[str, ScoreFunction] = field(default_factory=dict)
    grader: str | GraderClass | None = None
    api_key: str | None = field(default=None, repr=False)
    server_key_env: str | None = None
    server_python: str | None = None
    """Python with an older generation, in which the entrypoint is started as a server; None: in this process."""
    secrets: Sequence[str] = ()
    retry_failed: Sequence[str] | None = None
    """Retry failed rollouts of these categories or phases, all when empty; None: do not."""
    baselines: Sequence[ModelSpec] = ()
    pilot: int | None = None
    workers: int = 1
    rollout: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    export: Export | None = None
    must_exist: bool = False
    needs_scores: bool = True
    regrade: Literal["all", "failed"] | None = None
    """Run nothing: score all stored rollouts again, or only where a score failed."""
    confirm: Confirm | None = None
    watcher: Watcher = field(default_factory=Watcher)

    def folder(self, plan: EvalPlan) -> Path | None:
        return self.runs_dir / plan.name if self.runs_dir is not None else None

    def dataset(self, plan: EvalPlan) -> Path:
        return self.base_dir / Path(plan.dataset).expanduser()

    def objects(self, plan: EvalPlan) -> dict[str, object]:
        return {**({plan.agent: self.agent} if self.agent is not None else {}), **self.functions}

    def facts(self, plan: EvalPlan) -> dict[str, object]:
        objects = list(self.objects(plan))
        grader = self.grader
        if isinstance(grader, type):
            grader, findable = name_of(grader)
            objects += [] if findable else [grader]
        return {
            "base_dir": str(self.base_dir),
            "grader": grader,
            "server_key_env": self.server_key_env,
            "secrets": list(self.secrets),
            "rollout": self.rollout,
            "env": dict(self.env),
            **({"export": self.export.to_dict()} if self.export else {}),
            **({"objects": objects} if objects else {}),
        }


def stored_options(folder: Path, facts: object, environ: Mapping[str, str]) -> RunOptions:
    """Build the options that a run's `run.json` describes; `facts` is its part `local`."""
    if not isinstance(facts, dict):
        message = f"run {folder.name} cannot be resumed: it was not created by this command"
        raise ValidationError(message, hint="you can still report on it and compare it")
    if objects := facts.get("objects"):
        message = f"run {folder.name} was created in Python with objects that exist only there: {', '.join(objects)}"
        raise ValidationError(message, hint=f"call evaluate(..., name={folder.name!r}) there again to resume it")
    base = Path(facts["base_dir"])
    if not base.is_dir():
        message = f"the folder of run {folder.name} no longer exists: {base}"
        raise ValidationError(message, hint="move the folder back, or start a new run")
    return RunOptions(
        base,
        folder.parent,
        environ,
        grader=facts.get("grader"),
        server_key_env=facts.get("server_key_env"),
        secrets=facts.get("secrets") or [],
        rollout=facts.get("rollout"),
        env=facts.get("env") or {},
        export=Export.model_validate(facts["export"]) if facts.get("export") else None,
        must_exist=True,
    )


def runs_folder(cwd: Path) -> Path:
    try:
        root = find_workspace(cwd).root
    except WorkspaceRequired:
        root = cwd
    return root / ".osmosis" / "runs"


def write_foreign_dataset(agent: str, base_dir: Path, runs_dir: Path) -> Path:
    path = runs_dir.parent / "rows" / f"{re.sub(r'[^A-Za-z0-9]+', '-', agent).strip('-')}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_rows(open_foreign(agent, base_dir).make_rows(), path)
    return path


NO_RUNS = "make one on this machine: osmosis eval run CONFIG, or osmosis eval -m module:agent -d FILE"


def run_folder(name: str, cwd: Path) -> Path:
    runs = runs_folder(cwd)
    for folder in (runs / name, cwd / Path(name).expanduser()):
        if (folder / "run.json").exists():
            return folder
    stored = sorted(runs.glob("*/run.json"), key=lambda path: path.stat().st_mtime)
    full = match_name(name, [path.parent.name for path in reversed(stored)])
    if full is not None:
        return runs / full
    names = [path.parent.name for path in stored]
    listed = f"; existing: {', '.join(names[-8:])}" if names else ""
    raise NotFound(f"there is no run {name!r} in {runs}{listed}", hint="osmosis eval list" if names else NO_RUNS)


def generated_name(agent: str, dataset: str) -> str:
    kind, _, command = agent.partition(":")
    if kind == "command" and command.split():
        agent = command.split()[0]
    tail = agent.rpartition(":")[2] if "://" not in agent else agent.partition("://")[2]
    stem = re.sub(r"[^A-Za-z0-9]+", "-", f"{Path(tail).stem}-{Path(dataset).stem}").strip("-") or "run"
    return f"{stem[:60]}-{utc_now():%Y%m%d-%H%M%S}-{utc_now().microsecond // 1000:03d}"


def check_name(name: str, option: str = "name") -> str:
    if not RUN_NAME.match(name):
        message = f"{option} {name!r} is not a valid run name"
        raise UsageError(message, hint="use 1 to 96 letters, digits, . _ and -, starting with a letter or digit")
    return name


def check_classes(classes: Sequence[str]) -> None:
    wrong = [c for c in classes if c not in FAILURE_CLASSES]
    if wrong:
        message = f"{wrong[0]!r} is not a failure category or phase"
        raise UsageError(message, hint=f"one of: {', '.join(FAILURE_CLASSES)}")


def parse_model(
    text: str,
    *,
    base_url: str | None = None,
    api_key_env: str | None = None,
    params: Mapping[str, object] | None = None,
    option: str = "base_url",
) -> ModelSpec:
    """Parse a model as typed; `name@http://host/v1` brings its endpoint. Errors call the URL `option`."""
    if not text.strip():
        raise UsageError("the model name is empty", hint="to try without an account: offline/calculator")
    name, at, url = text.rpartition("@")
    if at and url.startswith(("http://", "https://")):
        text, base_url = name, url
    if base_url is not None:
        if not is_http(base_url):
            raise UsageError(f"{option} {base_url} is not an http URL", hint="http://localhost:8000/v1")
        if text.startswith("offline/"):
            raise UsageError(f"{text} runs in this process; {option} would not be used", hint="remove one of them")
    return ModelSpec.parse(text, base_url=base_url, api_key_env=api_key_env, params=dict(params or {}))


def key_for(spec: ModelSpec, environ: Mapping[str, str], explicit_key: str | None) -> str | None:
    if explicit_key:
        return explicit_key
    if spec.kind in ("offline", "replay"):
        return None
    if spec.api_key_env:
        key = environ.get(spec.api_key_env)
        if not key:
            raise ValidationError(f"{spec.api_key_env} is not set", hint=f"export {spec.api_key_env}=...")
        return key
    if spec.kind == "openai":
        return environ.get("OPENAI_API_KEY")
    provider = spec.name.partition("/")[0]
    variable = key_variable(provider)
    key = environ.get(variable)
    if not key and not spec.base_url and provider in _NEED_KEYS and not environ.get(_OTHER_KEYS.get(provider, "")):
        hint = f"export {variable}=..., or try the stand-in model: --model offline/calculator"
        raise ValidationError(f"{variable} is not set, and model {spec.name} needs it", hint=hint)
    return key


def server_key(name: str | None, environ: Mapping[str, str]) -> str | None:
    if name is None:
        return None
    key = environ.get(name)
    if not key:
        raise ValidationError(f"--server-key-env {name}: not set", hint=f"export {name}=...")
    if not key.isprintable():
        raise ValidationError(f"--server-key-env {name}: the key contains a line break", hint=f"export {name}=...")
    return key


def declared_secrets(names: Sequence[str], environ: Mapping[str, str], *values: str | None) -> list[str]:
    if not all(names):
        raise UsageError("--secret needs the name of a variable", hint="--secret SERVICE_TOKEN")
    missing = [name for name in names if not environ.get(name)]
    if missing:
        raise ValidationError(f"missing secrets: {', '.join(missing)}", hint=f"export {missing[0]}=...")
    return [environ[name] for name in names] + [value for value in values if value]
