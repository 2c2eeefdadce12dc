"""Training runs: checks before a submit, curves and checkpoints, without the trainer's libraries. Examples for `sft`
and `dpo` come from the run that the stored config names, so that a job can ask for no other."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from osmosis.base.hardware import TRAINER_PYTHON, find_python
from osmosis.errors import NotFound, PlatformError, ValidationError
from osmosis.metrics.training import Gate, Tried, curve_info, in_order, will_it_imitate, will_it_train
from osmosis.platform import tables
from osmosis.platform.datasets import service as datasets
from osmosis.platform.db import count_of
from osmosis.platform.models import merging, service as models
from osmosis.platform.runs import lifecycle
from osmosis.platform.settings import PlatformSettings
from osmosis.records.api import training as training_api
from osmosis.records.api.workers import StoredExample
from osmosis.records.config.experiment import TrainingExperiment
from osmosis.records.config.run_config import Evaluation, TrainingConfig
from osmosis.records.run.job import MetricPoint
from osmosis.records.run.plan import PLATFORM_MODEL
from osmosis.records.run.rollout import RolloutStatus
from osmosis.records.run.status import RunStatus
from osmosis.records.run.training import TrainingPlan, plan_training


class NoTrainer(PlatformError):
    code = "NO_TRAINER"
    http_status = 501


def check_machine(settings: PlatformSettings) -> None:
    """Raise NoTrainer if the platform's own jobs would train on this machine and cannot."""
    if not settings.worker or find_python(TRAINER_PYTHON, settings.environ) is not None:
        return
    needed = ".".join(map(str, TRAINER_PYTHON))
    raise NoTrainer(
        f"this platform cannot train: its machine has no Python {needed} or newer, which the trainer's libraries need",
        hint="install a newer Python beside the present one (nothing else has to change), for example python3.12",
    )


def store(session: Session, run_id: str, points: Iterable[MetricPoint]) -> int:
    """Store points of curves; of a step the last one counts, because a lost job trains its steps again."""
    once = {(p.key, p.step): p for p in points}.values()  # one statement can set a row only once
    values = [
        {"run_id": run_id, "key": p.key, "step": p.step, "value": p.value, "timestamp": p.timestamp} for p in once
    ]
    if not values:
        return 0
    dialect = sqlite if session.get_bind().dialect.name == "sqlite" else postgresql
    insert = dialect.insert(tables.MetricPoint)
    new_values = {"value": insert.excluded.value, "timestamp": insert.excluded.timestamp}
    key, changed = ["run_id", "key", "step"], tables.MetricPoint.value != insert.excluded.value
    upsert = insert.on_conflict_do_update(index_elements=key, set_=new_values, where=changed)
    return len(list(session.execute(upsert.returning(tables.MetricPoint.id), values)))


def rewind(session: Session, run: tables.Run, step: int) -> int:
    """Forget what came after a step. Groups that waited for a later step are lost: their tokens are elsewhere."""
    waiting = sa.select(tables.MetricPoint.value).filter_by(run_id=run.id, key="rollout/waiting_groups", step=step)
    lost = int(session.scalar(waiting) or 0)
    later = tables.Rollout.run_id == run.id, tables.Rollout.step > step
    forgotten = count_of(session, sa.select(tables.Rollout).where(*later))
    session.execute(sa.delete(tables.Rollout).where(*later).execution_options(synchronize_session=False))
    points = sa.delete(tables.MetricPoint).where(tables.MetricPoint.run_id == run.id, tables.MetricPoint.step > step)
    session.execute(points.execution_options(synchronize_session=False))
    if forgotten or lost:
        where = f"from step {step}" if step >= 0 else "from its beginning"
        reason = f"it goes on {where} on another machine: {forgotten} later rollouts are done again"
        if lost:
            reason += f", and {lost} groups that waited for a later step are lost, because their tokens are not there"
        session.add(
            tables.RunEvent(run_id=run.id, before=run.status, status=run.status, reason=reason)
        )  # see run_tally
        lifecycle.log(session, run, reason)
    return forgotten


def body(session: Session, run: tables.Run) -> training_api.TrainingMetrics:
    query = sa.select(tables.MetricPoint).filter_by(run_id=run.id)
    query = query.order_by(tables.MetricPoint.key, tables.MetricPoint.step)
    series: dict[str, list[tables.MetricPoint]] = {}
    for point in session.scalars(query):
        series.setdefault(point.key, []).append(point)
    steps = [points[-1].step for points in series.values()]
    overview = training_api.TrainingOverview(
        duration_ms=lifecycle.duration_ms(run),
        metric_summaries=[_summary(key, series[key]) for key in in_order(series)],
        examples_processed_count=count_rollouts(session, run.id),
        latest_step=max(steps, default=None),
        total_steps=(run.progress or tables.StoredProgress()).get("total"),
    )
    curves = []
    for key in in_order(series):
        points = [
            training_api.CurvePoint(step=p.step, value=p.value, timestamp=int(p.timestamp.timestamp() * 1000))
            for p in series[key]
        ]
        curves.append(training_api.Curve(metric_key=key, title=curve_info(key).title, data_points=points))
    return training_api.TrainingMetrics(training_run_id=run.id, status=run.status, overview=overview, metrics=curves)


def _summary(key: str, points: list[tables.MetricPoint]) -> training_api.CurveSummary:
    values = [point.value for point in points]
    return training_api.CurveSummary(
        key=key,
        title=curve_info(key).title,
        initial=values[0],
        latest=values[-1],
        delta=values[-1] - values[0],
        min=min(values),
        max=max(values),
    )


LATEST = {"rollout/raw_reward": "reward", "eval/validation/reward": "validation_reward"}


def list_latest_rewards(session: Session, run_ids: Sequence[str]) -> dict[str, dict[str, float]]:
    point = tables.MetricPoint
    query = sa.select(point.run_id, point.key, point.value).where(point.run_id.in_(run_ids), point.key.in_(LATEST))
    latest: dict[str, dict[str, float]] = {run_id: {} for run_id in run_ids}
    for run_id, key, value in session.execute(query.order_by(point.step)):
        latest[run_id][LATEST[key]] = value
    return latest


def count_rollouts(session: Session, run_id: str) -> int:
    query = sa.select(tables.Rollout).where(tables.Rollout.run_id == run_id)
    return count_of(session, query)


def checkpoints(session: Session, run: tables.Run) -> training_api.CheckpointList:
    query = sa.select(tables.Checkpoint).where(tables.Checkpoint.run_id == run.id).order_by(tables.Checkpoint.step)
    rows = session.scalars(query).all()
    best = max((row for row in rows if row.reward is not None), key=lambda row: (row.reward, row.step), default=None)
    listed = [
        training_api.CheckpointRow.from_row(row, checkpoint_step=row.step, checkpoint_name=row.name, best=row is best)
        for row in rows
    ]
    return training_api.CheckpointList(training_run_id=run.id, training_run_name=run.name, checkpoints=listed)


def list_trained_rows(session: Session, evaluation: tables.Run) -> set[str]:
    """Return the keys of the rows that an evaluation's model, and each model that it was made of, was trained on."""
    workspace = session.get_one(tables.Workspace, evaluation.workspace_id)
    keys, trained = set[str](), set[str]()
    prefix, _, name = evaluation.model_path.partition(PLATFORM_MODEL)
    while name and not prefix:
        base = session.scalars(sa.select(tables.BaseModel).filter_by(workspace_id=workspace.id, name=name)).first()
        run, step = _find_training(session, workspace.id, merging.origin_of(session, base) if base else name)
        if run is None or run.id in trained:
            break
        name = run.model_path
        trained.add(run.id)
        own = _rows_trained_on(session, workspace, run, step)
        same = [part["prefix"] for part in run.parts if not part["prefix"] or part["dataset"] == evaluation.dataset]
        keys |= {key.removeprefix(prefix) for prefix in same for key in own if key.startswith(prefix)}
    return keys


def _find_training(session: Session, workspace_id: str, adapter: str | None) -> tuple[tables.Run | None, int]:
    try:
        checkpoint = models.find_trained(session, workspace_id, adapter or "")
        return session.get(tables.Run, checkpoint.run_id), checkpoint.step
    except NotFound:
        name, _, step = (adapter or "").rpartition("-step-")
        query = sa.select(tables.Run).filter_by(workspace_id=workspace_id, kind="training", name=name)
        return session.scalars(query).first() if step.isdigit() else None, int(step) if step.isdigit() else 0


def plan_run(run: tables.Run) -> TrainingPlan:
    sizes = [part["rows"] for part in run.environments or ()]
    return plan_training(TrainingConfig.model_validate(run.config), run.rows, sizes=sizes)


def plan_config(
    session: Session, workspace: tables.Workspace, config: TrainingConfig, *, examples: int = 0
) -> TrainingPlan:
    """Plan a run of the datasets as they are now. Raise NotFound if one is missing."""
    used = [datasets.find(session, workspace, each.dataset) for each in config.environments.values()]
    sizes = [dataset.row_count or 0 for dataset in used]
    return plan_training(config, range(sum(sizes)), sizes=sizes, examples=examples)


def _rows_trained_on(session: Session, workspace: tables.Workspace, run: tables.Run, step: int) -> set[str]:
    config = TrainingConfig.model_validate(run.config)
    if config.advanced.method != "grpo":
        return list_row_keys(session, workspace, config)
    validation = set(plan_run(run).validation_rows)
    query = sa.select(tables.Rollout.row_index, tables.Rollout.row_key).distinct()
    # With oversample a step may have used groups that began in later ones.
    ahead = config.advanced.max_staleness if config.advanced.oversample > 1 else 0
    until = query.where(tables.Rollout.run_id == run.id, tables.Rollout.step.between(1, step + ahead))
    return {key for index, key in session.execute(until) if index not in validation}


MAX_ROLLOUTS = 1000
PAGE = 100


def check(
    session: Session, workspace: tables.Workspace, config: TrainingConfig, eval_run: str | None = None
) -> training_api.TrainingCheck:
    """Check a config by the named evaluation, else the newest of its rollout and dataset."""
    if config.advanced.method != "grpo":
        source = get_source(session, workspace, config)
        examples = count_examples(session, source, config)
        plan = plan_config(session, workspace, config, examples=examples)
        body = _body(plan, will_it_imitate(config, plan, examples), source)
        body.examples = examples
        return body
    plan = plan_config(session, workspace, config)
    environments = list(config.environments.values())
    runs = [_find_evaluation(session, workspace, each, None if config.mix else eval_run) for each in environments]
    tried = [
        [replace(attempt, row=f"{each.label}/{attempt.row}") for attempt in (_tried(session, run.id) if run else ())]
        for each, run in zip(environments, runs, strict=True)
    ]
    first = next(filter(None, runs), None)
    stored = first.config.get("evaluation", tables.StoredEvaluation()) if first else tables.StoredEvaluation()
    gate = will_it_train(config, plan, list(chain(*tried)), at_once=stored.get("batch_size"))
    of_all = {finding.what for finding in gate.findings}
    for each, own in zip(environments, tried, strict=True):
        for finding in will_it_train(config.of(each), plan, own, at_once=None).findings:
            if finding.what not in of_all and config.mix:
                text = f"{each.label}: {finding.what}"
                gate.findings.append(replace(finding, what=text, severity="warning"))
    return _body(plan, gate, first)


def _find_evaluation(
    session: Session, workspace: tables.Workspace, environment: TrainingExperiment, named: str | None
) -> tables.Run | None:
    if named is not None:
        return lifecycle.find(session, workspace, "eval", named)
    same = (
        tables.Run.workspace_id == workspace.id,
        tables.Run.kind == "eval",
        tables.Run.rollout == environment.rollout,
        tables.Run.dataset == environment.dataset,
        sa.exists().where(tables.Rollout.run_id == tables.Run.id),
    )
    is_of_base = tables.Run.model_path.in_([environment.model_path, PLATFORM_MODEL + environment.model_path])
    order = (is_of_base.desc(), tables.Run.created_at.desc())
    return session.scalars(sa.select(tables.Run).where(*same).order_by(*order).limit(1)).first()


def explain_too_small(config: TrainingConfig, plan: TrainingPlan) -> str | None:
    gate = will_it_train(config, plan, [], at_once=None)
    return next((finding.what for finding in gate.findings if finding.code == "too-few-rows"), None)


def _tried(session: Session, run_id: str) -> list[Tried]:
    columns = (tables.Rollout.row_key, tables.Rollout.reward, tables.Rollout.duration_ms, tables.Rollout.body)
    query = sa.select(*columns).where(tables.Rollout.run_id == run_id).order_by(tables.Rollout.id)
    records = []
    for start in range(0, MAX_ROLLOUTS, PAGE):
        page = session.execute(query.limit(PAGE).offset(start)).all()
        for key, reward, duration, body in page:
            usage = json.loads(body).get("usage") or {}
            records.append(Tried(key, reward, duration / 1000, int(usage.get("completion_tokens") or 0)))
        if len(page) < PAGE:
            break
    return records


def _body(plan: TrainingPlan, gate: Gate, run: tables.Run | None) -> training_api.TrainingCheck:
    return training_api.TrainingCheck.from_row(
        gate,
        eval_run=run.name if run else None,
        eval_model=run.model_path if run else None,
        steps=plan.steps,
        training_rows=len(plan.rows),
        validation_rows=len(plan.validation_rows),
        environments=[
            training_api.CheckedEnvironment.from_row(
                part,
                passes=plan.steps * plan.batch * part.share / max(1, len(part.rows)),
                **{name: len(getattr(part, name)) for name in ("rows", "validation_rows", "test_rows")},
            )
            for part in plan.environments
            if len(plan.environments) > 1
        ],
        rollouts_per_step=plan.at_once,
        total_rollouts=plan.rollouts,
        replacement_rollouts=plan.replacements,
        tried_rollouts=gate.rollouts,
        tried_groups=gate.groups,
        signal_ci=(gate.signal_interval.low, gate.signal_interval.high) if gate.signal_interval else None,
        findings=[training_api.GateFinding.from_row(finding) for finding in gate.findings],
    )


KINDS = ("eval", "training")
PAGE_BYTES = 8 * 1024 * 1024


def get_source(session: Session, workspace: tables.Workspace, config: TrainingConfig) -> tables.Run:
    """Return `eval/NAME`, `training/NAME`, or a name alone, an evaluation first. Raise ValidationError."""
    named = config.advanced.from_run or ""
    kind, _, name = named.rpartition("/")
    for candidate in (kind,) if kind else KINDS:
        try:
            run = lifecycle.find(session, workspace, candidate, name)
            break
        except NotFound:
            continue
    else:
        raise _refused(f"there is no run named {named!r}", "osmosis eval list, osmosis train list")
    if not RunStatus(run.status).over:
        command = "eval" if run.kind == "eval" else "train"
        raise _refused(f"run {named!r} is {run.status}", f"wait for it: osmosis {command} info {name}")
    return run


def full_name(run: tables.Run) -> str:
    return f"{run.kind}/{run.name}"


def least_score(run: tables.Run, config: TrainingConfig) -> float:
    if config.advanced.min_score is not None:
        return config.advanced.min_score
    threshold = run.config.get("evaluation", {}).get("pass_threshold")
    return Evaluation().pass_threshold if threshold is None else threshold


def count_examples(session: Session, run: tables.Run, config: TrainingConfig) -> int:
    if config.advanced.method == "dpo":
        return len(_pair(session, run, config))
    return session.scalar(sa.select(sa.func.count()).select_from(_chosen(run, config).subquery())) or 0


def explain_too_few(session: Session, workspace: tables.Workspace, config: TrainingConfig) -> str | None:
    run, batch = get_source(session, workspace, config), config.training.rollout_batch_size
    examples = count_examples(session, run, config)
    if examples >= batch:
        return None
    unit = "rollouts" if config.advanced.method == "sft" else "pairs of a worse rollout and one"
    score = least_score(run, config)
    return f"run {run.name!r} has {examples} {unit} with a score of at least {score:g}, and one step takes {batch}"


def list_row_keys(session: Session, workspace: tables.Workspace, config: TrainingConfig) -> set[str]:
    try:
        run = get_source(session, workspace, config)
    except ValidationError:
        return set()
    return set(session.scalars(_chosen(run, config).with_only_columns(tables.Rollout.row_key).distinct()))


def list_examples(
    session: Session, run: tables.Run, config: TrainingConfig, *, after: int, limit: int
) -> Iterator[StoredExample]:
    if config.advanced.method == "dpo":
        pairs = enumerate(_pair(session, run, config)[after : after + limit], after + 1)
        rows: Iterator[tuple[int, str, str]] = (
            (number, session.get_one(tables.Rollout, better).body, session.get_one(tables.Rollout, worse).body)
            for number, (better, worse) in pairs
        )
    else:
        query = _chosen(run, config).where(tables.Rollout.id > after).order_by(tables.Rollout.id).limit(limit)
        rows = ((position, body, "{}") for position, body in session.execute(query))
    sent = 0
    for position, body, worse_body in rows:
        record, rejected = orjson.loads(body), orjson.loads(worse_body).get("messages")
        messages, offered = record.get("messages") or [], record.get("tools")
        yield StoredExample(place=position, messages=messages, tools=offered, rejected=rejected)
        sent += len(body) + len(worse_body)
        if sent >= PAGE_BYTES:
            return


def _chosen(run: tables.Run, config: TrainingConfig) -> sa.Select[int, str]:
    return sa.select(tables.Rollout.id, tables.Rollout.body).where(
        tables.Rollout.run_id == run.id,
        tables.Rollout.status == RolloutStatus.SUCCESS.value,
        tables.Rollout.reward >= least_score(run, config),
    )


def _pair(session: Session, run: tables.Run, config: TrainingConfig) -> list[tuple[int, int]]:
    """Return ids of preferred and of worse rollouts: by row, the best and the worst first."""
    least = least_score(run, config)
    query = sa.select(tables.Rollout.id, tables.Rollout.row_key, tables.Rollout.reward).where(
        tables.Rollout.run_id == run.id,
        tables.Rollout.status == RolloutStatus.SUCCESS.value,
        tables.Rollout.reward.is_not(None),
    )
    rows: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for position, row, reward in session.execute(query.order_by(tables.Rollout.reward.desc(), tables.Rollout.id)):
        rows[row][float(reward or 0) < least].append(position)
    pairs = []
    for better, worse in rows.values():
        count = min(config.advanced.pairs_per_row, max(len(better), len(worse))) if better and worse else 0
        pairs += [(better[at % len(better)], worse[-1 - at % len(worse)]) for at in range(count)]
    return pairs


def _refused(message: str, fix: str) -> ValidationError:
    issue = {"key": "advanced.from_run", "message": message, "hint": fix}
    return ValidationError(message, hint=fix, issues=[issue])
