"""From the body of a submit to a run: config checked, dataset, secrets and code looked up, rows drawn, all pinned.

The config is checked by the rules of the TOML file, on the same records. What a run depends on is fixed here (commit,
dataset file, rows and seed), so that starting it later or again gives the same run. Refuses whatever could not run;
git is read with no session open.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pydantic
import sqlalchemy as sa
from pydantic import TypeAdapter
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from osmosis.errors import Conflict, NotFound, ValidationError
from osmosis.platform import Platform, tables
from osmosis.platform.gitsync import repositories, synced
from osmosis.platform.gitsync.syncing import CodeRef
from osmosis.records.config import CONFIGS, EvalConfig, TrainingConfig
from osmosis.records.config_check import issues_of
from osmosis.records.dataset import DatasetStatus
from osmosis.records.marks import Tags, unique
from osmosis.records.plan import PLATFORM_MODEL
from osmosis.records.row_sample import sampled
from osmosis.records.run_kind import RunKind
from osmosis.records.run_status import RunStatus
from osmosis.records.source import SnapshotNote

from . import audit, datasets, imitation, job_queue, links, models, quotas, run_lifecycle, secrets, training_check
from .audit import Actor

NAME_TRIES = 20


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a person asked for."""

    config: EvalConfig | TrainingConfig
    given: dict[str, str]
    """Secret values that came with the request, for this run only."""
    name: str | None = None
    """Of the run; None: the rollout's with a number."""
    snapshot: SnapshotNote | None = None
    """What was not committed, when the code is a working tree as it was."""
    tags: list[str] = field(default_factory=list)


def parse(body: dict[str, object], kind: str) -> RunRequest:
    """Check a submit. ValidationError lists every problem as `{key, message, fix, code, key_correction?}`."""
    try:
        rest, snapshot = SnapshotNote.of_request(body)
    except pydantic.ValidationError as error:
        found = error.errors()[0]
        key = ".".join(["snapshot", *map(str, found["loc"])])
        raise ValidationError(f"{key}: {found['msg']}", hint="submit again without --snapshot", field=key) from None
    try:
        name, tags = rest.pop("name", None), _tags(rest.pop("tags", None))
        config, given = CONFIGS[kind].from_request(rest)
        return RunRequest(config, given, None if name is None else run_lifecycle.checked_name(name), snapshot, tags)
    except pydantic.ValidationError as error:
        issues = issues_of(CONFIGS[kind], error)
    said = "; ".join(f"{issue.key}: {issue.what}" for issue in issues[:5])
    raise ValidationError(
        f"invalid {kind} config: {said}",
        hint="fix the config and submit it again",
        issues=[issue.to_dict() for issue in issues],
    )


def _tags(given: object) -> list[str]:
    try:
        return unique(TypeAdapter(Tags).validate_python(given or []))
    except pydantic.ValidationError as error:
        what = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise ValidationError(f"tags: {what}", hint="--tag NAME, or leave it out", field="tags") from None


@dataclass(frozen=True, slots=True)
class Picked:
    """The rows of a run."""

    rows: list[int]
    seed: int | None
    """None when they are the first N."""


def pick_rows(total: int, limit: int | None, seed: int) -> Picked:
    """The first `limit` rows in order, else a random tenth (at least one) drawn with `seed`."""
    count = sampled(total, limit)
    if limit is not None:
        return Picked(list(range(count)), None)
    return Picked(sorted(random.Random(seed).sample(range(total), count)), seed)


def submit(
    platform: Platform, workspace: tables.Workspace, who: Actor, request: RunRequest, *, kind: RunKind
) -> tables.Run:
    """Store a new pending run. ValidationError with issues, or NotFound naming the missing secrets."""
    config, user = request.config, who.user
    with platform.db.read() as session:
        repository = repositories.require(session, workspace.id)
        issues = _dataset_issues(session, workspace, config.experiment.dataset)
        issues += _model_issues(session, platform, workspace, config)
        _, missing = secrets.resolve(session, workspace.id, user.id, config.secret_names(), request.given)
        issues += _size_issues(session, workspace, config)
    code = _code(platform, repository.id, config, issues)
    if issues or code is None:
        raise ValidationError(
            f"this {kind} cannot run: {'; '.join(issue['message'] for issue in issues)}",
            hint=next((issue["hint"] for issue in issues if issue.get("hint")), None),
            issues=issues,
        )
    if missing:
        raise NotFound(
            f"Secret(s) not found: {', '.join(missing)}",
            hint=f"osmosis secret set {missing[0]}",
            platform_url=links.secrets(platform.settings, workspace.name),
            missing=missing,
        )
    return _store(platform, _Order(workspace, who, request, kind, repository.id, code))


@dataclass(frozen=True, slots=True)
class _Order:
    """A submit in which everything was found."""

    workspace: tables.Workspace
    who: Actor
    request: RunRequest
    kind: str
    repository_id: str
    code: CodeRef


def _store(platform: Platform, order: _Order) -> tables.Run:
    """Insert; when another submit took the same name in that moment, again with the next one."""
    for _ in range(NAME_TRIES):
        try:
            with platform.db.write() as session:
                run = _insert(session, order)
                secrets.put_for_run(session, platform.vault, run, order.who.user.id, order.request.given)
                audit.note(session, order.who, "run.submit", run.name, workspace=order.workspace, kind=order.kind)
            return run
        except IntegrityError:
            if order.request.name is not None:
                what = f"there is already a run named {order.request.name}"
                raise Conflict(what, hint="choose another --name, or leave it out") from None
    raise Conflict("too many submits at the same time", hint="submit again")


def _dataset_issues(session: Session, workspace: tables.Workspace, name: str) -> list[dict[str, str]]:
    key = "experiment.dataset"
    try:
        dataset = datasets.find(session, workspace, name)
    except NotFound as error:
        return [{"key": key, "message": error.message, "hint": "osmosis dataset upload FILE"}]
    if dataset.path is None or dataset.status != DatasetStatus.UPLOADED.value:
        message = f"dataset {name!r} is not ready: {dataset.status}"
        return [{"key": key, "message": message, "hint": f"osmosis dataset info {name}"}]
    return []


def _model_issues(
    session: Session, platform: Platform, workspace: tables.Workspace, config: EvalConfig | TrainingConfig
) -> list[dict[str, str]]:
    named, settings, key = config.experiment.model_path, platform.settings, "experiment.model_path"
    try:
        if isinstance(config, EvalConfig):
            if named.startswith(PLATFORM_MODEL) and not config.advanced.base_url:
                models.served(session, settings, workspace.id, named)
        elif config.advanced.engine == "trl":
            models.resolve(session, settings, workspace.id, named)
        else:
            key = "advanced.tokenizer"
            models.resolve(session, settings, workspace.id, config.advanced.tokenizer or named, weights=False)
    except ValidationError as error:
        return [{"key": key, "message": error.message, "hint": error.hint or ""}]
    return []


def _size_issues(
    session: Session, workspace: tables.Workspace, config: EvalConfig | TrainingConfig
) -> list[dict[str, str]]:
    if not isinstance(config, TrainingConfig):
        return []
    if config.advanced.method == "sft":
        return _example_issues(session, workspace, config)
    query = sa.select(tables.Dataset.row_count).where(
        tables.Dataset.workspace_id == workspace.id, tables.Dataset.name == config.experiment.dataset
    )
    rows = session.scalar(query)
    what = None if rows is None else training_check.too_small(config, rows)
    return [{"key": "training.rollout_batch_size", "message": what, "hint": "lower it, or add rows"}] if what else []


def _example_issues(session: Session, workspace: tables.Workspace, config: TrainingConfig) -> list[dict[str, str]]:
    try:
        what = imitation.too_few(session, workspace, config)
    except ValidationError as error:
        return [{"key": "advanced.from_run", "message": error.message, "hint": error.hint or ""}]
    fix = "lower min_score or rollout_batch_size, or name a run with more passed rollouts"
    return [{"key": "advanced.from_run", "message": what, "hint": fix}] if what else []


def _code(
    platform: Platform, repository_id: str, config: EvalConfig | TrainingConfig, issues: list[dict[str, str]]
) -> CodeRef | None:
    """The commit that will run; problems are added to the issues."""
    try:
        return synced.code_for_run(platform.db, platform.settings, repository_id, config.experiment)
    except ValidationError as error:
        found = error.issues or [{"key": "experiment", "message": error.message}]
        for issue in found:
            key = str(issue["key"]).replace("experiment_config.", "experiment.")
            issues.append({**issue, "key": key, **({"hint": error.hint} if error.hint else {})})
        return None


def _insert(session: Session, order: _Order) -> tables.Run:
    workspace, user, request, kind, code = order.workspace, order.who.user, order.request, order.kind, order.code
    config = _settled(session, workspace, request.config)
    dataset = datasets.find(session, workspace, config.experiment.dataset)
    limit = config.evaluation.limit if isinstance(config, EvalConfig) else dataset.row_count
    picked = pick_rows(dataset.row_count or 0, limit, random.SystemRandom().getrandbits(31))
    scopes, _ = secrets.resolve(session, workspace.id, user.id, config.secret_names(), request.given)
    aside = code.quarantine.of([dataset.name])
    run = tables.Run(
        id=tables.new_id(),
        workspace_id=workspace.id,
        repository_id=order.repository_id,
        dataset_id=dataset.id,
        creator_id=user.id,
        kind=kind,
        name=request.name or run_lifecycle.next_name(session, workspace.id, kind, config.experiment.rollout),
        status=RunStatus.PENDING.value,
        config=config.to_dict(),
        rollout=config.experiment.rollout,
        model_path=config.experiment.model_path,
        dataset=dataset.name,
        dataset_path=dataset.path or "",
        dataset_sha256=dataset.sha256,
        dataset_rows=dataset.row_count,
        branch=code.branch,
        commit_sha=code.commit_sha,
        rows=picked.rows,
        sampled_rows=len(picked.rows),
        sample_seed=picked.seed,
        secret_scopes=scopes,
        snapshot=request.snapshot.to_dict() if request.snapshot else None,
        quarantine=aside.to_dict() if aside.row else None,
        tags=request.tags,
        priority=config.advanced.priority,
    )
    session.add(run)
    quotas.check_run(workspace, run, job_queue.put(session, run)[0])
    if waits := quotas.why_waiting(session, workspace, run):
        run_lifecycle.log(session, run.id, waits)
    session.add(tables.RunEvent(run_id=run.id, before=None, status=run.status, reason=f"submitted by {user.name}"))
    where = f"commit {code.commit_sha[:12]}" + (f" of branch {code.branch}" if code.branch else "")
    drawn = f", drawn with seed {picked.seed}" if picked.seed is not None else ""
    run_lifecycle.log(session, run.id, f"submitted: {where}, {len(picked.rows)} of {dataset.row_count} rows{drawn}")
    return run


def _settled(
    session: Session, workspace: tables.Workspace, config: EvalConfig | TrainingConfig
) -> EvalConfig | TrainingConfig:
    """The config as it means the same whatever is stored later."""
    if not isinstance(config, TrainingConfig) or config.advanced.method != "sft":
        return config
    named = imitation.full_name(imitation.source(session, workspace, config))
    return config.model_copy(update={"advanced": config.advanced.model_copy(update={"from_run": named})})
