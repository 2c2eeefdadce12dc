"""What a job is told of its run. Places on this machine's disk are told only to a job that is on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import sqlalchemy as sa
from sqlalchemy.orm import Session, undefer

from osmosis.errors import OsmosisError
from osmosis.platform import tables
from osmosis.platform.settings import PlatformSettings
from osmosis.records.config import CONFIGS, EvalConfig, TrainingConfig
from osmosis.records.plan import PLATFORM_MODEL
from osmosis.records.run import JobSpec
from osmosis.records.run_kind import RunKind

from . import deployments, job_folders, merging, models, run_lifecycle, shards

MODEL_JOBS: Mapping[str, Callable[[Session, PlatformSettings, tables.Run], JobSpec]] = {
    run_lifecycle.SERVING: deployments.job_of,
    run_lifecycle.MERGE: merging.job_of,
}
"""Jobs of models, which have neither code nor secrets."""


def spec_of(session: Session, settings: PlatformSettings, job: tables.Job) -> JobSpec:
    """Everything but secrets. OsmosisError when the run cannot be started any more; ValueError for what an earlier
    version stored and this one cannot read."""
    run = session.get_one(tables.Run, job.run_id, options=[undefer(tables.Run.rows)])
    if (make := MODEL_JOBS.get(run.kind)) is not None:
        return make(session, settings, run)
    repository = session.get(tables.Repository, run.repository_id) if run.repository_id else None
    if repository is None:
        raise OsmosisError("the repository of this run is no longer connected", hint="submit a new run")
    kind: RunKind = "eval" if run.kind == "eval" else "training"
    config = CONFIGS[kind].model_validate(run.config)
    spec = JobSpec(
        run_id=run.id,
        run_name=run.name,
        kind=kind,
        commit_sha=run.commit_sha,
        config=config,
        dataset_rows=run.dataset_rows,
        rows=run.rows,
        shard=shards.shard_of(session, job),
        secret_names=sorted(run.secret_scopes),
        workspace=run.workspace_id,
        sandbox=settings.sandbox,
        torch=settings.torch,
    )
    if on_our_disk(session, job):
        return places_of(session, settings, run, spec, repository=repository)
    return spec if kind == "eval" else _elsewhere(spec, places_of(session, settings, run, spec))


def _elsewhere(spec: JobSpec, here: JobSpec) -> JobSpec:
    """A training job that has a disk of its own is told hub names; of what are folders here, that there are files."""
    ours = job_folders.named(here)
    hub = {
        "model_path": "" if job_folders.MODEL in ours else here.model_path,
        "tokenizer_path": "" if job_folders.TOKENIZER in ours else here.tokenizer_path,
    }
    return spec.model_copy(update={**hub, "folders": sorted(ours)})


def places_of(
    session: Session,
    settings: PlatformSettings,
    run: tables.Run,
    spec: JobSpec,
    *,
    repository: tables.Repository | None = None,
) -> JobSpec:
    """With the places on our disk."""
    model = _model_of(session, settings, run, spec.submitted)
    places = {
        "repository": str(settings.located(repository.path)) if repository is not None else "",
        "dataset_path": str(settings.located(run.dataset_path)),
        "model_path": model.base,
        "adapter_path": model.adapter,
        "tokenizer_path": model.tokenizer,
        "deployed": bool(model.base) and run.kind == "eval" and deployments.answers(session, run),
        "models_dir": str(models.checkpoints_of(settings, run.id)),
    }
    return spec.model_copy(update=places)


def on_our_disk(session: Session, job: tables.Job) -> bool:
    """Whether the job's worker is the platform's own."""
    query = sa.select(tables.Worker.embedded).where(tables.Worker.id == job.worker_id)
    return bool(session.scalar(query))


def folder_of(run: tables.Run, job: tables.Job | None = None) -> str:
    """Where a job works, below a worker's folder of runs: another one for each retry, and for each shard. Without a
    job: where files go that jobs elsewhere send."""
    parts = [run.id]
    if run.retries:
        parts.append(f"retry-{run.retries}")
    if job is not None and job.shards > 1:
        parts.append(f"shard-{job.shard}")
    return "/".join(parts)


def _model_of(
    session: Session, settings: PlatformSettings, run: tables.Run, config: EvalConfig | TrainingConfig
) -> models.Served:
    """What a job loads: the base model of a training run, a model of the platform in an evaluation, else nothing."""
    if isinstance(config, EvalConfig):
        own = run.model_path.startswith(PLATFORM_MODEL) and not config.advanced.base_url
        return models.served(session, settings, run.workspace_id, run.model_path) if own else models.Served("")
    if config.advanced.engine != "trl":  # which has models of its own
        wanted = config.advanced.tokenizer or config.experiment.model_path
        tokenizer = models.resolve(session, settings, run.workspace_id, wanted, weights=False)
        return models.Served(config.experiment.model_path, tokenizer=tokenizer)
    return models.Served(models.resolve(session, settings, run.workspace_id, run.model_path))
