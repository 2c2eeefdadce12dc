"""Submitting a config: one flow for evaluation and training. Check everything first, ask once, then one POST.

Nothing is sent when something would make the run other than what the person means; each finding names its fix,
and `--json` carries the same as data.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import InteractiveRequired, OsmosisError, ValidationError
from ..records.config import EvalConfig, TrainingConfig
from ..records.problem import Problem
from ..workspace.layout import Workspace, find_workspace, pick_config
from . import prompts
from .context import AppContext
from .output import NextStep, OperationResult

if TYPE_CHECKING:
    from ..client import PlatformClient
    from ..workspace.gitwrite import Snapshot
    from ..workspace.preflight import Facts

SYNC_TIMEOUT_S = 180.0
MAX_DIFF = 200_000


@dataclass(frozen=True)
class SubmitOptions:
    """What the flags of a submit say."""

    kind: Literal["eval", "training"]
    config: str | None
    """Path or name; None: the only one there is."""
    yes: bool = False
    wait: bool = False
    wait_sync: bool = False
    allow_dirty: bool = False
    snapshot: bool = False
    secrets_file: str | None = None
    fail_under: float | None = None

    @property
    def group(self) -> str:
        return "eval" if self.kind == "eval" else "train"


@dataclass
class _Case:
    """One submit on its way."""

    ctx: AppContext
    options: SubmitOptions
    client: PlatformClient
    workspace: Workspace
    path: Path
    config: EvalConfig | TrainingConfig
    facts: Facts
    snapshot: Snapshot | None = None
    provided: dict[str, str] = field(default_factory=dict)
    """Secret values for this run only."""


def submit_config(ctx: AppContext, options: SubmitOptions) -> OperationResult:
    """Check, confirm and submit; with `wait`, follow the run to its end."""
    workspace = find_workspace(ctx.cwd)
    path = _config_path(ctx, workspace, options)
    from ..workspace.config import load_config
    from ..workspace.preflight import gather

    # Loaded here and not where they are used: an interrupt in the middle of an import can get lost.
    from .run_watch import watch
    from .runs import finished_result

    config, warnings = load_config(path, workspace.root, options.kind)
    _warn(ctx, warnings)
    with ctx.client() as client:
        facts = gather(workspace.root, config.experiment)
        case = _Case(ctx, options, client, workspace, path, config, facts)
        _check_scope(case)
        _check_code(case)
        _collect_secrets(case)
        plan = _plan(case)
        _show_plan(ctx, plan)
        if not prompts.confirm(ctx, f"Submit this {options.group} run?", yes=options.yes):
            return OperationResult(f"{options.group}.submit", "Cancelled.", status="cancelled")
        if case.snapshot is not None:
            from ..workspace.gitwrite import push_snapshot

            push_snapshot(workspace.root, case.snapshot)
        answer = client.runs(options.kind).submit(_body(case))
        ctx.output.say(f"submitted {answer['name']}: {answer.get('platform_url') or ''}")
        if options.wait:
            view = watch(ctx, client.runs(options.kind), options.kind, str(answer["name"]))
            resource = _resource(case, answer)
            return finished_result(f"{options.group}.submit", view, fail_under=options.fail_under, resource=resource)
        return _submitted(case, answer)


def _config_path(ctx: AppContext, workspace: Workspace, options: SubmitOptions) -> Path:
    if options.config and (ctx.path(options.config).exists() or options.config.endswith(".toml")):
        from_top = workspace.root / options.config  # as every message shows it
        return from_top if not ctx.path(options.config).exists() else ctx.path(options.config)
    found = pick_config(workspace, options.kind, options.config)
    return found if found.is_absolute() else ctx.path(found)


def _check_scope(case: _Case) -> None:
    """With `--workspace NAME` the checkout must be that workspace's repository."""
    name = case.ctx.options.workspace
    if not name:
        return
    row = case.client.workspaces.find(name)
    connected = ((row or {}).get("connected_repo") or {}).get("repo_full_name")
    identity = case.facts.source.identity if case.facts.source else None
    if row is None or connected != identity:
        raise ValidationError(
            f"workspace {name} is connected to {connected or 'no repository'}, this checkout is {identity or 'none'}",
            hint="leave --workspace out, or cd into a checkout of that repository",
        )


def _check_code(case: _Case) -> None:
    from ..workspace.preflight import check_submit, sync_state

    options = case.options

    def problems() -> list[Problem]:
        state = sync_state(_sync_body(case))
        flags = {"allow_dirty": options.allow_dirty, "snapshot": options.snapshot}
        return check_submit(case.config.experiment, case.facts, state, **flags)

    found = problems()
    if options.wait_sync and any(p.code == "not-synced" for p in found):
        case.client.sync.start()
        deadline = time.monotonic() + SYNC_TIMEOUT_S
        while any(p.code == "not-synced" for p in found) and time.monotonic() < deadline:
            case.ctx.output.say("waiting for the platform to sync ...", style="dim")
            time.sleep(1.0)
            found = problems()
    errors = [p for p in found if p.severity == "error"]
    if errors:
        issues = [{"key": p.code, "message": p.what, "where": p.where, "fix": p.fix} for p in errors]
        first = f"{errors[0].where}: {errors[0].what}" if errors[0].where else errors[0].what
        what = first if len(errors) == 1 else f"{len(errors)} things stand in the way"
        raise ValidationError(f"not submitted: {what}", hint=errors[0].fix, issues=issues)
    _warn(case.ctx, found)
    experiment = case.config.experiment
    if options.snapshot and not experiment.commit_sha and not experiment.branch:
        from ..workspace.gitwrite import make_snapshot

        case.snapshot = make_snapshot(case.workspace.root)


def _sync_body(case: _Case) -> Mapping[str, Any] | None:
    """What the platform has; a platform that does not know the repository says so as data.

    None without a remote that names a repository: there is nothing to ask about, and git's findings say why.
    """
    if case.facts.source is None or case.facts.source.identity is None:
        return None
    try:
        return case.client.sync.state()
    except OsmosisError as error:
        if error.details.get("platform_code") == "GIT_REPOSITORY_NOT_CONNECTED":
            return {"connected": False}
        raise


def _warn(ctx: AppContext, problems: list[Problem]) -> None:
    for problem in problems:
        if problem.severity == "warning":
            ctx.output.warn(problem.code.upper().replace("-", "_"), problem.line())
        elif problem.severity == "info":
            ctx.output.say(problem.line(), style="dim")


def _collect_secrets(case: _Case) -> None:
    """Each required name: from `--secrets-file`, else registered, else this environment, else asked for."""
    required = case.config.secret_names()
    given = read_secrets_file(case.ctx, case.options.secrets_file) if case.options.secrets_file else {}
    if unknown := sorted(set(given) - set(required)):
        raise ValidationError(
            f"the secrets file has names the config does not require: {', '.join(unknown)}",
            hint=f"add them to [secrets].required in {case.path.name}, or remove them",
        )
    case.provided.update(given)
    open_names = [name for name in required if name not in given]
    if not open_names:
        return
    registered = {str(row.get("name")) for row in case.client.secrets.all()}
    missing = [name for name in open_names if name not in registered]
    for name in list(missing):
        if value := case.ctx.environ.get(name):
            case.ctx.output.warn("SECRET_FROM_ENVIRONMENT", f"{name} comes from this environment, for this run only")
            case.provided[name] = value
            missing.remove(name)
    if missing and not case.ctx.interactive:
        raise InteractiveRequired(
            f"secrets are missing: {', '.join(missing)}",
            hint=f"osmosis secret set {missing[0]}, or --secrets-file FILE",
            missing=missing,
            flags=["--secrets-file"],
        )
    for name in missing:
        value = prompts.hidden(case.ctx, f"Value of {name} (for this run only)", flags=["--secrets-file"])
        case.provided[name] = value


def read_secrets_file(ctx: AppContext, name: str) -> dict[str, str]:
    """`NAME=value` lines of a file or of standard input (`-`). A bad line is named by its number only."""
    if name == "-":
        text = ctx.stdin.read()
    else:
        path = ctx.path(name)
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            message = f"cannot read the secrets file {path}: {_reason(error)}"
            raise ValidationError(message, hint="--secrets-file FILE") from None
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip().removeprefix("export ")
        if not stripped or stripped.startswith("#"):
            continue
        key, equals, value = stripped.partition("=")
        if not equals or not key.strip().isidentifier():
            raise ValidationError(f"line {number} of the secrets file is not NAME=value", hint="write NAME=value")
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        values[key.strip()] = value
    return values


def _reason(error: Exception) -> str:
    return error.strerror or "unreadable" if isinstance(error, OSError) else "it is not text"


def _body(case: _Case) -> dict[str, Any]:
    """The request of contract B; with a snapshot, the commit that holds it."""
    config = case.config
    if case.snapshot is not None:
        taken = {"parent": case.snapshot.parent, "files": list(case.snapshot.files)}
        advanced = config.advanced.model_copy(update={"snapshot": {**taken, "diff": case.snapshot.diff[:MAX_DIFF]}})
        experiment = config.experiment.model_copy(update={"commit_sha": case.snapshot.commit})
        config = config.model_copy(update={"advanced": advanced, "experiment": experiment})
    return config.to_request(case.provided)


def _plan(case: _Case) -> dict[str, Any]:
    """What will run, for the person who confirms."""
    config, source = case.config, case.facts.source
    experiment = config.experiment
    code = "HEAD " + str(source.commit)[:12] if source else "?"
    if case.snapshot is not None:
        code = f"snapshot {case.snapshot.commit[:12]} of this working tree"
    elif experiment.commit_sha or experiment.branch:
        code = f"commit {experiment.commit_sha}" if experiment.commit_sha else f"branch {experiment.branch}"
    plan: dict[str, Any] = {
        "config": case.workspace.relative(case.path),
        "platform": case.ctx.platform_url,
        "rollout": f"{experiment.rollout} ({experiment.entrypoint})",
        "code": code,
        "model": experiment.model_path,
        "dataset": experiment.dataset,
    }
    if isinstance(config, EvalConfig):
        limit = config.evaluation.limit
        rows = f"first {limit}" if limit else "a random 10 %"
        plan["rows"] = f"{rows} x {config.evaluation.n} attempts, {config.evaluation.batch_size} at once"
    plan["env"] = ", ".join(sorted(config.env)) or None
    plan["secrets"] = ", ".join(config.secret_names()) or None
    return plan


def _show_plan(ctx: AppContext, plan: dict[str, Any]) -> None:
    for key, value in plan.items():
        if value:
            ctx.output.say(f"  {key:<9} {value}")


def _resource(case: _Case, answer: dict[str, Any]) -> dict[str, Any]:
    experiment = case.config.experiment
    source = case.facts.source
    return {
        "id": answer.get("id"),
        "name": answer.get("name"),
        "status": answer.get("status"),
        "model_name": experiment.model_path,
        "dataset_name": experiment.dataset,
        "created_at": answer.get("created_at"),
        "url": answer.get("platform_url"),
        "git": {"identity": source.identity, "remote_url": source.remote_url} if source else None,
        "workspace_directory": str(case.workspace.root),
        "config": {
            "rollout": experiment.rollout,
            "entrypoint": experiment.entrypoint,
            "model": experiment.model_path,
            "dataset": experiment.dataset,
            "branch": answer.get("branch") or experiment.branch,
            "commit_sha": answer.get("commit_sha") or experiment.commit_sha,
        },
    }


def _submitted(case: _Case, answer: dict[str, Any]) -> OperationResult:
    group = case.options.group
    steps = [NextStep("follow it", command=f"osmosis {group} wait {answer['name']}")]
    if answer.get("platform_url"):
        steps.append(NextStep("open", url=str(answer["platform_url"])))
    message = f"{group} run {answer['name']} is {answer.get('status')}"
    return OperationResult(f"{group}.submit", message, _resource(case, answer), next_steps=steps)
