"""What a local run is asked to do: a plan, and what surrounds it on this machine.

A `Request` is whole when it is made and never changes. Keys are in it for the time of the run and are never stored;
everything else that a resume needs goes into `run.json`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from osmosis.base.light_dataclass import dataclass
from osmosis.base.net import is_http
from osmosis.base.short_names import meant
from osmosis.engine.loader import name_of
from osmosis.errors import NotFound, UsageError, ValidationError, WorkspaceRequired
from osmosis.llm.provider_variables import key_variable
from osmosis.records.base import utc_now
from osmosis.records.plan import RUN_NAME, EvalPlan, ModelSpec
from osmosis.records.rollout import Category, Phase, RolloutStatus
from osmosis.workspace.layout import find_workspace

if TYPE_CHECKING:
    from osmosis.sdk.grader import GraderClass

FAILURE_CLASSES = [*(c.value for c in Category), *(p.value for p in Phase), RolloutStatus.SKIPPED.value]
_OTHER_KEYS: dict[str, tuple[str, ...]] = {
    "openai": (),
    "anthropic": ("ANTHROPIC_AUTH_TOKEN",),
    "xai": (),
    "gemini": ("GOOGLE_API_KEY",),
    "openrouter": ("OR_API_KEY",),
    "cerebras": (),
}
"""Providers that cannot be asked without a key, and where LiteLLM looks for it beside the usual variable."""

ScoreFunction = Callable[..., Any]
"""In either form that `engine.scoring` calls."""


@dataclass(frozen=True)
class Request:
    """A plan, and what surrounds it on this machine."""

    plan: EvalPlan
    base_dir: Path
    """Where modules and relative paths are looked for."""
    runs_dir: Path | None
    """Where the run's folder is; None keeps nothing."""
    environ: Mapping[str, str] = field(repr=False)
    agent: object | None = None
    """The agent itself, where the plan only names it."""
    functions: Mapping[str, ScoreFunction] = field(default_factory=dict)
    """Score functions themselves, by their names in the plan."""
    grader: str | GraderClass | None = None
    """Of a workflow: a class, or its `module:Class`."""
    api_key: str | None = field(default=None, repr=False)
    server_key_env: str | None = None
    """Variable that holds a rollout server's key."""
    secrets: Sequence[str] = ()
    """Names of variables whose values are taken out of everything written."""
    retry_failed: Sequence[str] | None = None
    """Retry failed rollouts of these categories or phases, all when empty; None: do not."""
    baselines: Sequence[ModelSpec] = ()
    """Further models beside the plan's, each in a run of its own."""
    pilot: int | None = None
    workers: int = 1
    """Processes that run and score; 1: this one."""
    """Run this many rollouts first, forecast the rest, then ask."""
    rollout: str | None = None
    """Of the workspace, when a config says what runs."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The config's variables; nothing secret."""
    must_exist: bool = False
    """The run has to be there: it is resumed."""
    needs_scores: bool = True
    """Refuse a run that nothing scores."""
    regrade: Literal["all", "failed"] | None = None
    """Run nothing: score what is stored again, or only where a score failed."""

    @property
    def folder(self) -> Path | None:
        return self.runs_dir / self.plan.name if self.runs_dir is not None else None

    @property
    def dataset(self) -> Path:
        return self.base_dir / Path(self.plan.dataset).expanduser()

    def facts(self) -> dict[str, object]:
        """What a resume needs beside the plan; stored in `run.json`."""
        objects = [*([self.plan.agent] if self.agent is not None else []), *self.functions]
        grader = self.grader
        if isinstance(grader, type):
            grader, found = name_of(grader)
            objects += [] if found else [grader]
        return {
            "base_dir": str(self.base_dir),
            "grader": grader,
            "server_key_env": self.server_key_env,
            "secrets": list(self.secrets),
            "rollout": self.rollout,
            "env": dict(self.env),
            **({"objects": objects} if objects else {}),
        }


def stored_request(folder: Path, plan: EvalPlan, facts: object, environ: Mapping[str, str]) -> Request:
    """The request that a run's `run.json` describes; `facts` is what it holds under `local`."""
    if not isinstance(facts, dict):
        raise ValidationError(
            f"run {folder.name} cannot be resumed: it was not created by this command",
            hint="you can still report on it and compare it",
        )
    if objects := facts.get("objects"):
        raise ValidationError(
            f"run {folder.name} was created in Python with objects that exist only there: {', '.join(objects)}",
            hint=f"call evaluate(..., name={folder.name!r}) there again to resume it",
        )
    base = Path(facts["base_dir"])
    if not base.is_dir():
        raise ValidationError(
            f"the folder of run {folder.name} no longer exists: {base}", hint="move the folder back, or start a new run"
        )
    return Request(
        plan.model_copy(update={"name": folder.name}),
        base,
        folder.parent,
        environ,
        grader=facts.get("grader"),
        server_key_env=facts.get("server_key_env"),
        secrets=facts.get("secrets") or [],
        rollout=facts.get("rollout"),
        env=facts.get("env") or {},
        must_exist=True,
    )


def runs_folder(cwd: Path) -> Path:
    """`.osmosis/runs` of the workspace around this folder, else of the folder itself."""
    try:
        root = find_workspace(cwd).root
    except WorkspaceRequired:
        root = cwd
    return root / ".osmosis" / "runs"


def run_folder(name: str, cwd: Path) -> Path:
    """The folder of a stored run: by name or path, by the beginning of one name alone, or the `latest` one.

    `NotFound` names the runs that there are, UsageError those that a beginning could mean.
    """
    runs = runs_folder(cwd)
    for folder in (runs / name, cwd / Path(name).expanduser()):
        if (folder / "run.json").exists():
            return folder
    stored = sorted(runs.glob("*/run.json"), key=lambda path: path.stat().st_mtime)
    full = meant(name, [path.parent.name for path in reversed(stored)])
    if full is not None:
        return runs / full
    known = [path.parent.name for path in stored]
    listed = f"; existing: {', '.join(known[-8:])}" if known else ""
    raise NotFound(f"there is no run {name!r} in {runs}{listed}", hint="use the name of a local run")


def generated_name(agent: str, dataset: str) -> str:
    """`<agent>-<dataset>-<time>`: tells runs apart in a listing."""
    tail = agent.rpartition(":")[2] if "://" not in agent else agent.partition("://")[2]
    stem = re.sub(r"[^A-Za-z0-9]+", "-", f"{Path(tail).stem}-{Path(dataset).stem}").strip("-") or "run"
    return f"{stem[:60]}-{utc_now():%Y%m%d-%H%M%S}-{utc_now().microsecond // 1000:03d}"


def check_name(name: str, option: str = "name") -> str:
    """The name, when it can name a run; `option` is what the error calls it."""
    if not RUN_NAME.match(name):
        raise UsageError(
            f"{option} {name!r} is not a valid run name",
            hint="use 1 to 96 letters, digits, . _ and -, starting with a letter or digit",
        )
    return name


def check_classes(classes: Sequence[str]) -> None:
    """Refuses words that are not failure categories or phases."""
    wrong = [c for c in classes if c not in FAILURE_CLASSES]
    if wrong:
        raise UsageError(
            f"{wrong[0]!r} is not a failure category or phase", hint=f"one of: {', '.join(FAILURE_CLASSES)}"
        )


def parse_model(
    text: str,
    *,
    base_url: str | None = None,
    api_key_env: str | None = None,
    params: Mapping[str, object] | None = None,
    option: str = "base_url",
) -> ModelSpec:
    """A model as typed; `name@http://host/v1` brings its own endpoint. `option` is what errors call the URL."""
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


def key_for(spec: ModelSpec, environ: Mapping[str, str], given: str | None) -> str | None:
    """The key of this model: the one given, its variable's, or its provider's usual variable's.

    Raises ValidationError for a provider that cannot be asked without: the vendor's library would try for half a
    minute first.
    """
    if given:
        return given
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
    if not key and provider in _OTHER_KEYS and not any(map(environ.get, _OTHER_KEYS[provider])):
        raise ValidationError(
            f"{variable} is not set, and model {spec.name} needs it",
            hint=f"export {variable}=..., or try the stand-in model: --model offline/calculator",
        )
    return key


def server_key(name: str | None, environ: Mapping[str, str]) -> str | None:
    """The rollout server's key, from the variable of this name."""
    if name is None:
        return None
    key = environ.get(name)
    if not key:
        raise ValidationError(f"--server-key-env {name}: not set", hint=f"export {name}=...")
    if not key.isprintable():
        raise ValidationError(f"--server-key-env {name}: the key contains a line break", hint=f"export {name}=...")
    return key


def declared_secrets(names: Sequence[str], environ: Mapping[str, str], *known: str | None) -> list[str]:
    """The values to be taken out of everything written: of the named variables, and keys in use."""
    if not all(names):
        raise UsageError("--secret needs the name of a variable", hint="--secret SERVICE_TOKEN")
    missing = [name for name in names if not environ.get(name)]
    if missing:
        raise ValidationError(f"missing secrets: {', '.join(missing)}", hint=f"export {missing[0]}=...")
    return [environ[name] for name in names] + [value for value in known if value]
