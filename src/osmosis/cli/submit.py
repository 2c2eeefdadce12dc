"""`osmosis eval submit` and `osmosis train submit`: check everything first, ask once, then one POST.

Nothing is sent when something would make the run other than what the person means; each finding names its fix,
and `--json` carries the same as data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError as PydanticError

from osmosis.errors import InteractiveRequired, NotFound, OsmosisError, ValidationError
from osmosis.records.config import EvalConfig, Experiment, TrainingConfig
from osmosis.records.contract.printed import GitPlace, PrintedSource, PrintedSubmit
from osmosis.records.contract.run_bodies import SubmittedRun
from osmosis.records.problem import Problem
from osmosis.records.run import NOUNS, RunKind, sampled
from osmosis.records.source import SnapshotNote, SyncState
from osmosis.workspace.config_file import ConfigFile, check_file, locate, refused
from osmosis.workspace.gitwrite import Snapshot, make_snapshot, push_snapshot
from osmosis.workspace.layout import Workspace, find_workspace, pick_config
from osmosis.workspace.preflight import Facts, check_submit, gather

from . import prompts
from .context import AppContext, current
from .results import NextStep, OperationResult
from .reward_check import check_reward
from .run_show import finished_result, watch
from .secrets_file import SecretsFile, read_secrets_file
from .submit_overrides import Limit, MaxCost, MaxTokens, Model, N, Overrides, Priority, RunName, RunTags, Shards
from .training_gate import check_training, plan_lines
from .training_probe import probe_config, probed

if TYPE_CHECKING:
    from osmosis.client import PlatformClient

SYNC_TIMEOUT_S = 180.0
FEW_ROWS = 20

WaitSync = Annotated[bool, typer.Option("--wait-sync", help="Wait until the platform has synced HEAD")]
AllowDirty = Annotated[
    bool, typer.Option("--allow-dirty", help="Run what the platform has synced, despite local changes")
]
SnapshotOption = Annotated[
    bool, typer.Option("--snapshot", help="Run this working tree as it is, without committing it")
]


@dataclass(frozen=True)
class SubmitOptions:
    """What the flags of a submit say."""

    kind: RunKind
    config: str | None
    """Path or name; None: the only one there is."""
    yes: bool = False
    wait: bool = False
    wait_sync: bool = False
    allow_dirty: bool = False
    snapshot: bool = False
    secrets_file: str | None = None
    fail_under: float | None = None
    overrides: Overrides = field(default_factory=Overrides)
    force: bool = False
    """Submit a training run although nothing could be learned."""
    probe: int | None = None
    """Evaluate the base model on so many rows first."""

    @property
    def noun(self) -> str:
        return NOUNS[self.kind]


def submit_eval(
    config: Annotated[
        str | None, typer.Argument(help="A config under configs/eval/, by path or name [default: the only one]")
    ] = None,
    model: Model = None,
    n: N = None,
    limit: Limit = None,
    shards: Shards = None,
    max_cost: MaxCost = None,
    max_tokens_total: MaxTokens = None,
    priority: Priority = None,
    name: RunName = None,
    tag: RunTags = None,
    yes: prompts.Yes = False,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Follow the run to its end, then show its figures")
    ] = False,
    wait_sync: WaitSync = False,
    allow_dirty: AllowDirty = False,
    snapshot: SnapshotOption = False,
    secrets_file: SecretsFile = None,
    fail_under: Annotated[
        float | None,
        typer.Option("--fail-under", min=0, max=1, help="With --wait: exit with 1 when the pass rate is below this"),
    ] = None,
) -> OperationResult:
    """Submit an evaluation to the platform, after checking config, code, dataset and secrets.

    Example:
        osmosis eval submit configs/eval/multiply.toml --wait
        osmosis eval submit multiply --yes --wait --fail-under 0.8
        osmosis eval submit multiply --model openai/gpt-5-mini --limit 50 --name mini-first-50
        osmosis eval submit multiply --shards auto --wait
    """
    changed = Overrides(model, n, limit, name, shards, tuple(tag or ()), max_cost, max_tokens_total, priority)
    options = SubmitOptions(
        "eval", config, yes, wait, wait_sync, allow_dirty, snapshot, secrets_file, fail_under, changed
    )
    return submit_config(current(), options)


def submit_train(
    config: Annotated[
        str | None, typer.Argument(help="A config under configs/training/, by path or name [default: the only one]")
    ] = None,
    model: Model = None,
    priority: Priority = None,
    name: RunName = None,
    tag: RunTags = None,
    yes: prompts.Yes = False,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Follow the run to its end")] = False,
    wait_sync: WaitSync = False,
    allow_dirty: AllowDirty = False,
    snapshot: SnapshotOption = False,
    secrets_file: SecretsFile = None,
    force: Annotated[
        bool, typer.Option("--force", help="Submit although the evaluation says that nothing could be learned")
    ] = False,
    probe: Annotated[
        int | None,
        typer.Option("--probe", min=1, metavar="N", help="First evaluate the base model on N rows, and judge by that"),
    ] = None,
) -> OperationResult:
    """Submit a training run, after checking config, code, dataset, secrets, and whether it would learn anything.

    The newest evaluation of the same rollout and dataset says that, or --probe: N rows are run now, with the base
    model and as many attempts at each as in training.

    Example:
        osmosis train submit configs/training/multiply.toml --wait
        osmosis train submit multiply --probe 8
        osmosis train submit multiply --yes
    """
    changed = Overrides(model=model, name=name, tags=tuple(tag or ()), priority=priority)
    options = SubmitOptions(
        "training",
        config,
        yes,
        wait,
        wait_sync,
        allow_dirty,
        snapshot,
        secrets_file,
        overrides=changed,
        force=force,
        probe=probe,
    )
    return submit_config(current(), options)


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
    dataset_rows: int | None = None
    """How many the platform has; None while nobody has counted them."""


def submit_config(ctx: AppContext, options: SubmitOptions) -> OperationResult:
    """Check, confirm and submit; with `wait`, follow the run to its end."""
    workspace = find_workspace(ctx.cwd)
    path = _config_path(ctx, workspace, options)
    file = locate(path, workspace, options.kind)
    config, said = check_file(file, workspace)
    if config is None or any(p.severity == "error" for p in said):
        raise _invalid(ctx, options, workspace, file, said)
    _warn(ctx, said)
    config = options.overrides.apply(config)
    with ctx.client() as client:
        facts = gather(workspace.root, config.experiment)
        case = _Case(ctx, options, client, workspace, path, config, facts)
        _check_scope(case)
        if errors := _check_code(case):
            raise _refused(case, errors)
        missing = _find_secrets(case)
        if missing and not ctx.interactive:
            raise _refused(case, [], missing)
        _ask_for_secrets(case, missing)
        case.dataset_rows = _row_count(client, config.experiment.dataset)
        case.config = options.overrides.whole(config, case.dataset_rows)
        plan, check = _plan(case), None
        if options.kind == "training":
            check = check_training(ctx, client, _body(case), force=options.force, eval_run=_probe(case))
            plan |= plan_lines(check)
            plan["reward"] = check_reward(ctx, workspace.root, config.experiment.rollout, config.env)
        _show_plan(ctx, plan)
        if not prompts.confirm(ctx, f"Submit this {options.noun} run?", yes=options.yes):
            return OperationResult(f"{options.noun}.submit", "Cancelled.", status="cancelled")
        _push(case)
        answer = client.runs(options.kind).submit(_body(case))
        news = f"submitted {answer.name}: {answer.platform_url or ''}"
        checked: dict[str, object] = {"check": check.to_dict()} if check else {}
        if not options.wait:
            ctx.output.say(news)
            return _submitted(case, answer, checked)
        seen = watch(ctx, client.runs(options.kind), answer.name, news=news)
    printed = _printed(case, answer).to_dict() | checked
    return finished_result(f"{options.noun}.submit", seen, fail_under=options.fail_under, resource=printed)


def _probe(case: _Case) -> str | None:
    """The name of an evaluation of the base model that was run just now, when one is wanted."""
    rows, config = case.options.probe, case.config
    if rows is None or not isinstance(config, TrainingConfig):
        return None
    wanted = probe_config(config, rows)
    _push(case)
    body = _body(replace(case, config=wanted))
    body.pop("name", None)  # that of the training run
    return probed(case.ctx, case.client.runs("eval"), body, wanted)


def _push(case: _Case) -> None:
    if case.snapshot is not None:
        push_snapshot(case.workspace.root, case.snapshot)


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
    connected = row.identity if row else None
    identity = case.facts.source.identity if case.facts.source else None
    if row is None or connected != identity:
        raise ValidationError(
            f"workspace {name} is connected to {connected or 'no repository'}, this checkout to {identity or 'none'}",
            hint="remove --workspace, or cd into a checkout of that repository",
        )


def _check_code(case: _Case) -> list[Problem]:
    """What stops a run of this code; warnings are said, and a snapshot is made when it is asked for."""
    options = case.options

    def problems(state: SyncState | None) -> list[Problem]:
        flags = {"allow_dirty": options.allow_dirty, "snapshot": options.snapshot}
        return check_submit(case.config.experiment, case.facts, state, **flags)

    found = problems(_synced(case))
    if options.wait_sync and any(p.code == "not-synced" for p in found):
        found = problems(_wait_for_sync(case))
    if errors := [p for p in found if p.severity == "error"]:
        return errors
    _warn(case.ctx, found)
    experiment = case.config.experiment
    if options.snapshot and not experiment.commit_sha and not experiment.branch:
        case.snapshot = make_snapshot(case.workspace.root)
    return []


def _refused(case: _Case, errors: list[Problem], missing: Sequence[str] = ()) -> OsmosisError:
    """One error with everything that stops this submit; missing secrets alone are a question nobody can be asked."""
    found = list(errors)
    try:
        found += _dataset_problems(case.client, case.config.experiment.dataset)
        missing = missing or _find_secrets(case)
    except OsmosisError:
        pass  # what the platform cannot be asked now does not hide what is wrong here
    if missing:
        fix = f"osmosis secret set {missing[0]}, or use --secrets-file FILE"
        what = f"missing secrets: {', '.join(missing)}"
        if not found:
            return InteractiveRequired(what, hint=fix, missing=list(missing), flags=["--secrets-file"])
        found.append(Problem(code="missing-secret", what=what, where="secrets.required", fix=fix))
    first = f"{found[0].where}: {found[0].what}" if found[0].where else found[0].what
    what = first if len(found) == 1 else f"{len(found)} problems"
    return ValidationError(f"not submitted: {what}", hint=found[0].fix, issues=[_issue(one) for one in found])


def _issue(problem: Problem) -> dict[str, object]:
    return {"key": problem.code, "message": problem.what, "where": problem.where, "fix": problem.fix}


def _dataset_problems(client: PlatformClient, name: str) -> list[Problem]:
    try:
        row = client.datasets.get(name)
    except NotFound:
        fix = f"osmosis dataset upload {name}.jsonl"
        return [Problem(code="no-dataset", what=f"there is no dataset {name!r}", where="experiment.dataset", fix=fix)]
    if row.ready:
        return []
    what = f"dataset {name!r} is not ready: {row.status}"
    return [
        Problem(code="dataset-not-ready", what=what, where="experiment.dataset", fix=f"osmosis dataset info {name}")
    ]


def _invalid(
    ctx: AppContext, options: SubmitOptions, workspace: Workspace, file: ConfigFile, said: list[Problem]
) -> ValidationError:
    """A config with errors: refused with all of them, and with whatever else can already be known to stop it."""
    error = refused(file, [p for p in said if p.severity == "error"])
    try:
        experiment = Experiment.model_validate(file.data.get("experiment"))
        with ctx.client() as client:
            facts = gather(workspace.root, experiment)
            named = facts.source is not None and facts.source.identity is not None
            state = client.sync.state() if named else None
            flags = {"allow_dirty": options.allow_dirty, "snapshot": options.snapshot}
            found = [p for p in check_submit(experiment, facts, state, **flags) if p.severity == "error"]
            found += _dataset_problems(client, experiment.dataset)
    except (OsmosisError, PydanticError):
        return error  # nothing more can be known yet: the config's own errors come first
    if not found:
        return error
    issues = [*error.issues, *map(_issue, found)]
    message = error.message.rpartition(": ")[0]
    return ValidationError(f"{message}: {len(issues)} problems", hint=error.hint, issues=issues)


def _row_count(client: PlatformClient, dataset: str) -> int | None:
    try:
        return client.datasets.get(dataset).row_count
    except NotFound:
        return None  # the submit says so, with everything else that is wrong


def _synced(case: _Case) -> SyncState | None:
    """What the platform has. None without a remote that names a repository: git's findings say why."""
    if case.facts.source is None or case.facts.source.identity is None:
        return None
    return case.client.sync.state()


def _wait_for_sync(case: _Case) -> SyncState | None:
    """Wait until the platform has HEAD; a sync that failed ends the submit with its error."""
    source = case.facts.source
    if source is None or source.commit is None:
        return None
    commit = source.commit

    def said(status: str) -> None:
        case.ctx.output.say(f"waiting for the platform to sync {commit[:10]} ({status})", style="dim")

    return case.client.sync.wait_for(commit, source.branch, timeout_s=SYNC_TIMEOUT_S, said=said)


def _warn(ctx: AppContext, problems: list[Problem]) -> None:
    for problem in problems:
        if problem.severity == "warning":
            ctx.output.warn(problem.code.upper().replace("-", "_"), problem.line())
        elif problem.severity == "info":
            ctx.output.say(problem.line(), style="dim")


def _find_secrets(case: _Case) -> list[str]:
    """Each required name from `--secrets-file`, else registered, else from this environment; those that are nowhere."""
    required = case.config.secret_names()
    given = read_secrets_file(case.ctx, case.options.secrets_file) if case.options.secrets_file else {}
    if unknown := sorted(set(given) - set(required)):
        raise ValidationError(
            f"the secrets file has names that the config does not require: {', '.join(unknown)}",
            hint=f"add them to [secrets].required in {case.path.name}, or remove them",
        )
    case.provided.update(given)
    open_names = [name for name in required if name not in given]
    if not open_names:
        return []
    registered = {row.name for row in case.client.secrets.all()}
    missing = [name for name in open_names if name not in registered]
    for name in list(missing):
        if value := case.ctx.environ.get(name):
            case.ctx.output.warn("SECRET_FROM_ENVIRONMENT", f"{name} taken from the environment, for this run only")
            case.provided[name] = value
            missing.remove(name)
    return missing


def _ask_for_secrets(case: _Case, missing: list[str]) -> None:
    for name in missing:
        value = prompts.hidden(case.ctx, f"Value of {name} (for this run only)", flags=["--secrets-file"])
        case.provided[name] = value


def _body(case: _Case) -> dict[str, object]:
    """The request of contract B; with a snapshot, the commit that holds it."""
    taken, beside = case.snapshot, case.options.overrides.beside()
    if taken is None:
        return {**case.config.to_request(case.provided), **beside}
    experiment = case.config.experiment.model_copy(update={"commit_sha": taken.commit})
    note = SnapshotNote(parent=taken.parent, files=list(taken.files), diff=taken.diff)
    request = case.config.model_copy(update={"experiment": experiment}).to_request(case.provided)
    return {**request, "snapshot": note.to_dict(), **beside}


def _plan(case: _Case) -> dict[str, object]:
    """What will run, for the person who confirms."""
    config, source = case.config, case.facts.source
    experiment = config.experiment
    code = "HEAD " + str(source.commit)[:12] if source else "?"
    if case.snapshot is not None:
        code = f"snapshot {case.snapshot.commit[:12]} of this working tree"
    elif experiment.commit_sha or experiment.branch:
        code = f"commit {experiment.commit_sha}" if experiment.commit_sha else f"branch {experiment.branch}"
    plan: dict[str, object] = {
        "name": case.options.overrides.name,
        "tags": ", ".join(case.options.overrides.tags) or None,
        "config": case.workspace.relative(case.path),
        "platform": case.ctx.platform_url,
        "rollout": f"{experiment.rollout} ({experiment.entrypoint})",
        "code": code,
        "model": experiment.model_path,
        "dataset": experiment.dataset,
    }
    if isinstance(config, EvalConfig):
        plan["rows"] = _rows(case, config)
    plan["env"] = ", ".join(sorted(config.env)) or None
    plan["secrets"] = ", ".join(config.secret_names()) or None
    return plan


def _rows(case: _Case, config: EvalConfig) -> str:
    """How many rows run, and of how many; a remark where they are too few for a verdict."""
    wanted, total = config.evaluation, case.dataset_rows
    each = f"x {wanted.n} attempts, {wanted.batch_size} at once"
    if not total:
        return f"{f'the first {wanted.limit}' if wanted.limit else 'a random 10 %'} {each}"
    count = sampled(total, wanted.limit)
    how = "" if count == total else f" (the first {count})" if wanted.limit else " (a random 10 %)"
    if count < min(total, FEW_ROWS):
        what = f"{count} of {total} rows run{how}: too few to tell one agent from another"
        case.ctx.output.warn("FEW_ROWS", f"{what}; for more: --limit {min(total, FEW_ROWS)}, or limit in [evaluation]")
    return f"{count} of {total}{how} {each}"


def _show_plan(ctx: AppContext, plan: Mapping[str, object]) -> None:
    for key, value in plan.items():
        if value:
            ctx.output.say(f"  {key:<9} {value}")


def _printed(case: _Case, answer: SubmittedRun) -> PrintedSubmit:
    experiment = case.config.experiment
    source = case.facts.source
    return PrintedSubmit(
        id=answer.id,
        name=answer.name,
        status=answer.status,
        model_name=experiment.model_path,
        dataset_name=experiment.dataset,
        created_at=answer.created_at,
        url=answer.platform_url,
        git=GitPlace(identity=source.identity, remote_url=source.remote_url) if source else None,
        workspace_directory=str(case.workspace.root),
        config=PrintedSource(
            rollout=experiment.rollout,
            entrypoint=experiment.entrypoint,
            model=experiment.model_path,
            dataset=experiment.dataset,
            branch=answer.branch or experiment.branch,
            commit_sha=answer.commit_sha or experiment.commit_sha,
        ),
    )


def _submitted(case: _Case, answer: SubmittedRun, checked: dict[str, object]) -> OperationResult:
    noun = case.options.noun
    steps = [NextStep("follow it", command=f"osmosis {noun} wait {answer.name}")]
    if answer.platform_url:
        steps.append(NextStep("open", url=answer.platform_url))
    message = f"{noun} run {answer.name} is {answer.status}"
    return OperationResult(f"{noun}.submit", message, _printed(case, answer).to_dict() | checked, next_steps=steps)
