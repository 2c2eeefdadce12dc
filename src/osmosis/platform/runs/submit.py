"""From the body of a submit to a pending run, with commit, file, rows and seed. Git is read with no session open."""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path

import pydantic
import sqlalchemy as sa
from pydantic import TypeAdapter
from sqlalchemy.orm import Session

from osmosis.errors import NotFound, ValidationError
from osmosis.platform import Platform, tables
from osmosis.platform.datasets import service as datasets
from osmosis.platform.git import repositories, sync
from osmosis.platform.models import service as models
from osmosis.platform.runs import lifecycle
from osmosis.platform.scheduling import queue
from osmosis.platform.training import service as training
from osmosis.platform.vault import Vault
from osmosis.platform.workspaces import audit, quotas, secrets
from osmosis.records.base import utc_now
from osmosis.records.config.advanced import TrainingAdvanced
from osmosis.records.config.check import CONFIGS, ConfigIssue, list_issues
from osmosis.records.config.optimize import OptimizeConfig
from osmosis.records.config.run_config import EvalConfig, TrainingConfig, parse_interval, section
from osmosis.records.run.annotations import Tags, unique
from osmosis.records.run.plan import PLATFORM_MODEL
from osmosis.records.run.rows import DatasetStatus, count_sampled
from osmosis.records.run.source import SnapshotNote
from osmosis.records.run.status import RunKind, RunStatus


@dataclass(frozen=True, slots=True)
class RunRequest:
    config: EvalConfig | TrainingConfig
    given: dict[str, str]
    name: str | None = None
    snapshot: SnapshotNote | None = None
    tags: list[str] = field(default_factory=list)
    rows: list[int] | None = None  # Indices of the rows to run; None: as the config says
    submitter: str = ""
    """In words, where the platform submits it; with the secrets of the owner besides the workspace's."""
    owner_id: str | None = None


def parse(body: dict[str, object], kind: str) -> RunRequest:
    """Parse a submit; raise ValidationError with `{key, message, fix, code, key_correction?}` for each problem."""
    try:
        rest, snapshot = SnapshotNote.of_request(body)
        kind = "optimize" if section("optimize") in rest else kind
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        key = ".".join(["snapshot", *map(str, first["loc"])])
        raise ValidationError(f"{key}: {first['msg']}", hint="submit again without --snapshot", field=key) from None
    try:
        name, tags = rest.pop("name", None), _tags(rest.pop("tags", None))
        config, secret_values = CONFIGS[kind].from_request(rest)
        return RunRequest(config, secret_values, None if name is None else lifecycle.parse_name(name), snapshot, tags)
    except pydantic.ValidationError as error:
        raise explain_invalid(kind, list_issues(CONFIGS[kind], error)) from None


def explain_invalid(kind: str, issues: list[ConfigIssue]) -> ValidationError:
    summary = "; ".join(f"{issue.key}: {issue.what}" for issue in issues[:5])
    hint = "fix the config and submit it again"
    return ValidationError(f"invalid {kind} config: {summary}", hint=hint, issues=[issue.to_dict() for issue in issues])


def _tags(value: object) -> list[str]:
    try:
        return unique(TypeAdapter(Tags).validate_python(value or []))
    except pydantic.ValidationError as error:
        message = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise ValidationError(f"tags: {message}", hint="--tag NAME, or leave it out", field="tags") from None


@dataclass(frozen=True, slots=True)
class Picked:
    rows: list[int]
    seed: int | None


def pick_rows(total: int, limit: int | None, seed: int) -> Picked:
    count = count_sampled(total, limit)
    if limit is not None:
        return Picked(list(range(count)), None)
    return Picked(sorted(random.Random(seed).sample(range(total), count)), seed)


def submit(
    platform: Platform, workspace: tables.Workspace, actor: audit.Actor, request: RunRequest, *, kind: RunKind
) -> tables.Run:
    order = check(platform, workspace, actor, request, kind=kind)
    with platform.db.write() as session:
        return insert(session, platform.vault, order)


def check(
    platform: Platform, workspace: tables.Workspace, actor: audit.Actor | None, request: RunRequest, *, kind: RunKind
) -> "Order":
    """Check a submit by a person, or by the platform itself, which may have the secrets of the workspace only."""
    config, user_id = request.config, actor.user.id if actor else request.owner_id
    with platform.db.read() as session:
        repository = repositories.get_for_workspace(session, workspace.id)
        issues = []
        for table, environment in config.environments.items():
            issues += _dataset_issues(session, workspace, environment.dataset, f"{table}.dataset")
        issues += _model_issues(session, platform, workspace, config)
        _, missing = secrets.resolve(session, workspace.id, user_id, config.secret_names(), request.given)
        issues += _size_issues(session, workspace, config) + _schedule_issues(session, workspace, request)
        if config.notify is not None:
            missing += secrets.resolve(session, workspace.id, user_id, config.notify.secret_names())[1]
            if config.notify.email and not platform.settings.smtp_url.get_secret_value():
                hint = "leave email out; or an operator sets OSMOSIS_SMTP_URL and starts the platform again"
                issues.append({"key": "notify.email", "message": "this platform sends no e-mail", "hint": hint})
    code = _code(platform, repository.id, config, issues)
    if issues or code is None:
        noun = "search" if isinstance(config, OptimizeConfig) else kind
        message = f"this {noun} cannot run: {'; '.join(issue['message'] for issue in issues)}"
        fixes = [issue["hint"] for issue in issues if issue.get("hint")]
        raise ValidationError(message, hint=next(iter(fixes), None), issues=issues)
    if missing:
        message, hint = f"Secret(s) not found: {', '.join(missing)}", f"osmosis secret set {missing[0]}"
        url = platform.settings.secrets_url(workspace.name)
        raise NotFound(message, hint=hint, platform_url=url, missing=missing)
    return Order(workspace, actor, request, kind, repository.id, code)


@dataclass(frozen=True, slots=True)
class Order:
    workspace: tables.Workspace
    who: audit.Actor | None
    request: RunRequest
    kind: str
    repository_id: str
    code: sync.CodeRef


def _dataset_issues(session: Session, workspace: tables.Workspace, name: str, key: str) -> list[dict[str, str]]:
    try:
        dataset = datasets.find(session, workspace, name)
    except NotFound as error:
        return [{"key": key, "message": error.message, "hint": "osmosis dataset upload FILE"}]
    if dataset.path is None or dataset.status != DatasetStatus.UPLOADED.value:
        message = f"dataset {name!r} is not ready: {dataset.status}"
        return [{"key": key, "message": message, "hint": f"osmosis dataset show {name}"}]
    return []


def _model_issues(
    session: Session, platform: Platform, workspace: tables.Workspace, config: EvalConfig | TrainingConfig
) -> list[dict[str, str]]:
    named, settings, key = config.experiment.model_path, platform.settings, "experiment.model_path"
    try:
        if isinstance(config, EvalConfig):
            if named.startswith(PLATFORM_MODEL) and not config.advanced.base_url:
                models.resolve_served(session, settings, workspace.id, named)
        elif config.advanced.engine == "local":
            if (start := models.find_start(session, workspace.id, named)) is None:
                models.resolve(session, settings, workspace.id, named)
            else:
                adapter = models.resolve_served(session, settings, workspace.id, named).adapter
                models.hold_checkpoint(settings, start)
                if (
                    issues := _adapter_issues(Path(adapter), config.advanced)
                    if adapter
                    else _full_issues(start, config)
                ):
                    return issues
            if config.advanced.teacher:
                key = "advanced.teacher"
                models.resolve(session, settings, workspace.id, config.advanced.teacher)
        else:
            key = "advanced.tokenizer"
            models.resolve(session, settings, workspace.id, config.advanced.tokenizer or named, weights=False)
    except ValidationError as error:
        return [{"key": key, "message": error.message, "hint": error.hint or ""}]
    return []


def _full_issues(start: tables.Checkpoint, config: TrainingConfig) -> list[dict[str, str]]:
    if config.advanced.tune == "full":
        return []
    message = f"tune is 'lora', and every weight of {start.name} was trained"
    hint = f'tune = "full"; for an adapter on top, osmosis model merge {start.name} and name its result in model_path'
    return [{"key": "advanced.tune", "message": message, "hint": hint}]


def _adapter_issues(folder: Path, advanced: TrainingAdvanced) -> list[dict[str, str]]:
    """List the written keys that are not those of the adapter to go on from, which has its own."""
    file = folder / "adapter_config.json"
    adapter = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    own = {
        "lora_rank": adapter.get("r"),
        "lora_alpha": adapter.get("lora_alpha"),
        "lora_targets": sorted(adapter.get("target_modules") or ()),
        "tune": "lora",
    }
    issues = []
    for key in sorted(own.keys() & advanced.model_fields_set):
        value = getattr(advanced, key)
        if (sorted(value) if isinstance(value, list) else value) not in (own[key], ["all-linear"]):
            message = f"{key} is {value!r}, and the adapter that training goes on from has {own[key]!r}"
            issues.append({"key": f"advanced.{key}", "message": message, "hint": f"remove {key}"})
    return issues


def _size_issues(
    session: Session, workspace: tables.Workspace, config: EvalConfig | TrainingConfig
) -> list[dict[str, str]]:
    if isinstance(config, OptimizeConfig):
        try:
            total = datasets.find(session, workspace, config.experiment.dataset).row_count
            config.optimize.check_size(total or 0, config.evaluation.n)
        except NotFound:
            return []
        except ValidationError as error:
            return [{"key": "optimize", "message": error.message, "hint": error.hint or ""}]
    if not isinstance(config, TrainingConfig):
        return []
    if config.advanced.method != "grpo":
        try:
            message = training.explain_too_few(session, workspace, config)
        except ValidationError as error:
            return [{"key": "advanced.from_run", "message": error.message, "hint": error.hint or ""}]
        fix = "lower min_score or rollout_batch_size, or name a run with more passed rollouts"
        return [{"key": "advanced.from_run", "message": message, "hint": fix}] if message else []
    try:
        message = training.explain_too_small(config, training.plan_config(session, workspace, config))
    except NotFound:
        return []
    key = "training.rollout_batch_size"
    return [{"key": key, "message": message, "hint": "lower it, or add rows"}] if message else []


def _schedule_issues(session: Session, workspace: tables.Workspace, request: RunRequest) -> list[dict[str, str]]:
    config = request.config
    if not isinstance(config, EvalConfig) or config.schedule is None or request.snapshot:
        return []
    names = config.secret_names() + (config.notify.secret_names() if config.notify else [])
    missing = secrets.resolve(session, workspace.id, None, names)[1]
    message = f"later runs have the secrets of the workspace only, without {', '.join(missing)}"
    hint = f"osmosis secret set {missing[0]} --scope workspace" if missing else ""
    return [{"key": "schedule", "message": message, "hint": hint}] if missing else []


def _code(
    platform: Platform, repository_id: str, config: EvalConfig | TrainingConfig, issues: list[dict[str, str]]
) -> sync.CodeRef | None:
    try:
        return sync.code_for_run(platform.db, platform.settings, repository_id, config.environments)
    except ValidationError as error:
        for issue in error.issues or [{"key": "experiment", "message": error.message}]:
            issues.append({**issue, **({"hint": error.hint} if error.hint else {})})
        return None


def _pick_held_out(
    session: Session, workspace: tables.Workspace, name: str, dataset: tables.Dataset, limit: int | None
) -> Picked:
    run = lifecycle.find(session, workspace, "training", name)
    parts = zip(training.plan_run(run).environments, run.parts, strict=True)
    same = [part for part, own in parts if own["sha256"] == dataset.sha256]  # all of them hold out the same rows
    if not same:
        names = " and ".join(dict.fromkeys(part["dataset"] for part in run.parts))
        message = f"{name} was trained on {names} as it was then, and this evaluation has other rows"
        raise ValidationError(message, hint="evaluate the same dataset, or leave out --held-out-of")
    rows = [row - same[0].start for row in same[0].test_rows or same[0].validation_rows]
    if not rows:
        hint = "set test_rows in [advanced] of the training config, and train again"
        raise ValidationError(f"{name} holds no rows out: it trains on all of them", hint=hint)
    return Picked(rows[:limit], None)


def insert(session: Session, vault: Vault, order: Order) -> tables.Run:
    workspace, request, kind, code = order.workspace, order.request, order.kind, order.code
    user_id = order.who.user.id if order.who else request.owner_id
    config = _settled(session, workspace, request.config)
    if request.name is not None:
        lifecycle.refuse_taken(session, workspace.id, request.name)
    used = [datasets.find(session, workspace, each.dataset) for each in config.environments.values()]
    dataset, total = used[0], sum(each.row_count or 0 for each in used)
    labels = [each.label for each in config.environments.values()] if isinstance(config, TrainingConfig) else []
    environments = [
        tables.StoredEnvironment(
            prefix=f"{label}/", dataset=own.name, dataset_id=own.id, path=own.path or "",
            sha256=own.sha256, rows=own.row_count or 0,
        )
        for label, own in zip(labels, used, strict=False)
    ]  # fmt: skip
    stem, is_search = config.experiment.rollout, isinstance(config, OptimizeConfig)
    stem += "-optimize" if is_search else ""
    limit = config.evaluation.limit if isinstance(config, EvalConfig) and not is_search else total
    if request.rows is not None:
        picked = Picked(request.rows, None)
    elif isinstance(config, EvalConfig) and config.evaluation.held_out_of:
        picked = _pick_held_out(session, workspace, config.evaluation.held_out_of, dataset, limit)
    else:
        picked = pick_rows(total, limit, random.SystemRandom().getrandbits(31))
    scopes, _ = secrets.resolve(session, workspace.id, user_id, config.secret_names(), request.given)
    quarantined = code.quarantine.of([dataset.name])
    run = tables.Run(
        id=tables.new_id(),
        workspace_id=workspace.id,
        repository_id=order.repository_id,
        dataset_id=dataset.id,
        creator_id=user_id,
        kind=kind,
        name=request.name or lifecycle.next_name(session, workspace.id, stem),
        status=RunStatus.PENDING.value,
        config=config.to_dict(),
        rollout=config.experiment.rollout,
        model_path=config.experiment.model_path,
        dataset=dataset.name,
        dataset_path=dataset.path or "",
        dataset_sha256=dataset.sha256,
        dataset_rows=total,
        environments=environments if len(environments) > 1 else None,
        branch=code.branch,
        commit_sha=code.commit_sha,
        rows=picked.rows,
        sampled_rows=len(picked.rows),
        sample_seed=picked.seed,
        secret_scopes=scopes,
        snapshot=request.snapshot.to_dict() if request.snapshot else None,
        quarantine=quarantined.to_dict() if quarantined.row else None,
        tags=request.tags,
        priority=config.advanced.priority,
    )
    session.add(run)
    quotas.check_run(workspace, run, queue.enqueue_run(session, run)[0])
    if waits := quotas.explain_waiting(session, workspace, run):
        lifecycle.log(session, run, waits)
    by = order.who.user.name if order.who else f"the {request.submitter}"
    session.add(tables.RunEvent(run_id=run.id, before=None, status=run.status, reason=f"submitted by {by}"))
    where = f"commit {code.commit_sha[:12]}" + (f" of branch {code.branch}" if code.branch else "")
    drawn = f", drawn with seed {picked.seed}" if picked.seed is not None else ""
    lifecycle.log(session, run, f"submitted: {where}, {len(picked.rows)} of {total} rows{drawn}")
    if isinstance(config, TrainingConfig):  # as settled: defaults adapt to the model and the dataset
        lengths = f"{config.training.max_prompt_length} and {config.training.max_response_length} tokens"
        batch = config.training.rollout_batch_size
        lifecycle.log(session, run, f"prompts and answers of at most {lengths}, {batch} prompts a step")
    secrets.store_for_run(session, vault, run, user_id, request.given)
    audit.note(session, order.who, "run.submit", run.name, workspace=workspace, kind=kind)
    if isinstance(config, EvalConfig) and config.schedule is not None and order.who is not None:
        row = tables.Schedule(workspace_id=workspace.id, name=config.schedule_name, every=config.schedule.every)
        _begin_schedule(session, order.who, workspace, row, run)
    return run


def _begin_schedule(
    session: Session, actor: audit.Actor, workspace: tables.Workspace, row: tables.Schedule, run: tables.Run
) -> None:
    if run.snapshot is not None:
        lifecycle.log(session, run, f"schedule {row.name} is not begun: a snapshot is not pushed", level="warning")
        return
    row.config, row.tags, row.creator_id, row.last_run_id = run.config, run.tags, actor.user.id, run.id
    row.next_at = utc_now() + parse_interval(row.every)
    same = tables.Schedule.workspace_id == workspace.id, tables.Schedule.name == row.name
    session.execute(sa.delete(tables.Schedule).where(*same))
    session.add(row)
    audit.note(session, actor, "schedule.begin", row.name, workspace=workspace, every=row.every)
    lifecycle.log(session, run, f"schedule {row.name}: the next run is submitted in {row.every}")


def _settled(
    session: Session, workspace: tables.Workspace, config: EvalConfig | TrainingConfig
) -> EvalConfig | TrainingConfig:
    if not isinstance(config, TrainingConfig):
        return config
    named, is_local = config.experiment.model_path, config.advanced.engine == "local"
    if is_local and (start := models.find_start(session, workspace.id, named)):  # a run's best checkpoint may change
        experiment = config.experiment.model_copy(update={"model_path": start.name})
        config, named = config.model_copy(update={"experiment": experiment}), start.base_model
    query = sa.select(tables.BaseModel.context_length).filter_by(workspace_id=workspace.id, name=named)
    most, lengths = session.scalars(query).first(), ("max_prompt_length", "max_response_length")
    if most and not config.training.model_fields_set & set(lengths):  # a default adapts to what the model can read
        update = {name: min(getattr(config.training, name), most // 2) for name in lengths}
        config = config.model_copy(update={"training": config.training.model_copy(update=update)})
    if config.advanced.method == "grpo":
        batch = training.plan_config(session, workspace, config).batch
        return config.model_copy(update={"training": config.training.model_copy(update={"rollout_batch_size": batch})})
    named = training.full_name(training.get_source(session, workspace, config))
    return config.model_copy(update={"advanced": config.advanced.model_copy(update={"from_run": named})})
