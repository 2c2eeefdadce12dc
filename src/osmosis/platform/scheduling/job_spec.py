"""Write the order of a job from its run. Only a job on this machine is told its paths."""

import sqlalchemy as sa
from sqlalchemy.orm import Session, undefer

from osmosis.base.jsonable import JsonObject
from osmosis.errors import OsmosisError
from osmosis.platform import tables
from osmosis.platform.models import deployments, service as models
from osmosis.platform.runs import lifecycle
from osmosis.platform.scheduling import job_files, shards
from osmosis.platform.settings import PlatformSettings
from osmosis.records.config.check import CONFIGS
from osmosis.records.config.run_config import EvalConfig
from osmosis.records.run.job import JobSpec, ModelJob
from osmosis.records.run.plan import PLATFORM_MODEL
from osmosis.records.run.status import JobKind, RunKind


def build_spec(session: Session, settings: PlatformSettings, job: tables.Job) -> JobSpec:
    """Build the spec of a job, without secrets. Raise OsmosisError, or ValueError for unreadable values."""
    work = lifecycle.get_work(session, job)
    if isinstance(work, tables.Deployment):
        return _model_job(session, settings, work, "serving", ModelJob(model=work.name))
    if isinstance(work, tables.Merge):
        output_dir = str(models.folder_of(settings, work.id))
        config = ModelJob(model=work.adapter, output_dir=output_dir, dtype=work.dtype)
        return _model_job(session, settings, work, "merge", config)
    run = session.get_one(tables.Run, job.run_id, options=[undefer(tables.Run.rows)])
    if run.repository is None:
        raise OsmosisError("the repository of this run is no longer connected", hint="submit a new run")
    kind: RunKind = "eval" if run.kind == "eval" else "training"
    spec = JobSpec(
        **_common(settings, run),
        kind=kind,
        commit_sha=run.commit_sha,
        config=CONFIGS["optimize" if "optimize" in run.config else kind].model_validate(run.config),
        optimization=run.optimization,
        dataset_rows=run.dataset_rows,
        rows=run.rows,
        sizes=[part["rows"] for part in run.environments or ()],
        shard=shards.shard_of(session, job),
        secret_names=sorted(run.secret_scopes),
        person=run.creator_id or "",
    )
    if is_on_our_disk(session, job):
        return add_places(session, settings, run, spec)
    return spec if kind == "eval" else _elsewhere(spec, add_places(session, settings, run, spec))


def _common(settings: PlatformSettings, work: tables.Work) -> JsonObject:
    own = {"run_id": work.id, "run_name": work.name, "workspace": work.workspace_id}
    return {**own, "sandbox": settings.sandbox, "torch": settings.torch}


def _model_job(
    session: Session, settings: PlatformSettings, work: tables.Work, kind: JobKind, config: ModelJob
) -> JobSpec:
    model = models.resolve_served(session, settings, work.workspace_id, PLATFORM_MODEL + config.model)
    paths = {"model_path": model.base, "adapter_path": model.adapter}
    return JobSpec(**_common(settings, work), kind=kind, config=config, **paths)


def _elsewhere(spec: JobSpec, local: JobSpec) -> JobSpec:
    ours = job_files.name_folders(local)
    hub = {
        "model_path": "" if job_files.MODEL in ours else local.model_path,
        "tokenizer_path": "" if job_files.TOKENIZER in ours else local.tokenizer_path,
        "teacher_path": "" if job_files.TEACHER in ours else local.teacher_path,
    }
    return spec.model_copy(update={**hub, "folders": sorted(ours)})


def add_places(session: Session, settings: PlatformSettings, run: tables.Run, spec: JobSpec) -> JobSpec:
    config, teacher = spec.submitted, ""
    if isinstance(config, EvalConfig):
        own = run.model_path.startswith(PLATFORM_MODEL) and not config.advanced.base_url
        model = models.resolve_served(session, settings, run.workspace_id, run.model_path) if own else models.Served("")
    elif config.advanced.engine != "local":  # which has models of its own
        tokenizer_name = config.advanced.tokenizer or config.experiment.model_path
        tokenizer = models.resolve(session, settings, run.workspace_id, tokenizer_name, weights=False)
        model = models.Served(config.experiment.model_path, tokenizer=tokenizer)
    else:
        if models.find_start(session, run.workspace_id, run.model_path):
            model = models.resolve_served(session, settings, run.workspace_id, run.model_path)
        else:
            model = models.Served(models.resolve(session, settings, run.workspace_id, run.model_path))
        if config.advanced.teacher:
            teacher = models.resolve(session, settings, run.workspace_id, config.advanced.teacher)
    places = {
        "repository": str(settings.located(run.repository.path)) if run.repository is not None else "",
        "dataset_path": "" if run.environments else str(settings.located(run.dataset_path)),
        "model_path": model.base,
        "adapter_path": model.adapter,
        "tokenizer_path": model.tokenizer,
        "teacher_path": teacher,
        "deployed": bool(model.base) and run.kind == "eval" and deployments.answers(session, run),
        "models_dir": str(models.checkpoints_of(settings, run.id)),
    }
    return spec.model_copy(update=places)


def is_on_our_disk(session: Session, job: tables.Job) -> bool:
    return bool(session.scalar(sa.select(tables.Worker.embedded).where(tables.Worker.id == job.worker_id)))
