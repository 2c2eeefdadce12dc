"""Again, please. Of an evaluation: the rollouts that failed, were skipped or never came about, in a fresh work folder.
Of a training run: on from its last checkpoint, or from the start as a new run.

Successful rollouts are kept; a run in which all succeeded starts from nothing, when that is asked for. Values given
with the first submit are gone by then and are asked for. So is a larger budget, when the one of the run is used up.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import Conflict, NotFound, NothingToRetry, ValidationError
from osmosis.platform import tables
from osmosis.platform.security.vault import Vault
from osmosis.records.config import EvalConfig
from osmosis.records.contract.run_bodies import RetryRun
from osmosis.records.plan import EvalPlan
from osmosis.records.report import Report
from osmosis.records.run_status import RunStatus

from . import job_queue, rollouts, run_lifecycle, secrets


def retry(
    session: Session,
    vault: Vault,
    run: tables.Run,
    user: tables.User,
    asked: RetryRun,
) -> int:
    """Make a run pending again; how many rollouts are to be made (0 = all of it, from the start) is the answer.

    NothingToRetry for a run in which all succeeded, unless `everything` is to be made again; Conflict for one that
    would stop at once, because it has spent its budget.
    """
    given = asked.secrets or {}
    if not RunStatus(run.status).over:
        raise Conflict(f"run {run.name!r} is {run.status}: only a finished run can be retried")
    _refuse_elsewhere(run)
    _check_inputs(session, run, given)
    secrets.put_for_run(session, vault, run, user.id, given)
    run.secret_scopes, _ = secrets.resolve(session, run.workspace_id, run.creator_id, run.secret_scopes, given)
    rollouts.drop_unsuccessful(session, run.id)
    total = run.sampled_rows * run.config.get("evaluation", {}).get("n", 1)
    kept = len(rollouts.keys(session, run.id))
    missing = total - kept
    _raise_budget(session, run, asked)
    if missing:
        _check_budget(run)
    else:
        if not asked.everything:
            raise NothingToRetry(
                f"all {total} rollouts of run {run.name!r} succeeded: a retry would run all of them again",
                hint=f"osmosis eval retry {run.name} --yes runs them again and drops what is there",
                rollouts=total,
            )
        session.execute(sa.delete(tables.Rollout).where(tables.Rollout.run_id == run.id))
        run.report = None
    run.retries += 1
    job_queue.put(session, run)
    run.progress = run.started_at = None
    run_lifecycle.switch_status(session, run, RunStatus.PENDING, f"retried by {user.name}")
    run_lifecycle.log(session, run.id, f"retry {run.retries}: {missing or total} of {total} rollouts")
    return missing


def resume(session: Session, vault: Vault, run: tables.Run, user: tables.User, given: Mapping[str, str]) -> None:
    """Make a training run pending again, with its work folder, curves and checkpoints: its job goes on from the last
    checkpoint. Conflict for one that is complete."""
    if not RunStatus(run.status).over:
        raise Conflict(f"run {run.name!r} is {run.status} already", hint=f"osmosis train wait {run.name}")
    if run.status == RunStatus.FINISHED.value:
        raise Conflict(f"run {run.name!r} is complete", hint=f"osmosis train retry {run.name} trains anew")
    _check_inputs(session, run, given)
    secrets.put_for_run(session, vault, run, user.id, given)
    run.secret_scopes, _ = secrets.resolve(session, run.workspace_id, run.creator_id, run.secret_scopes, given)
    job_queue.put(session, run)
    run_lifecycle.switch_status(session, run, RunStatus.PENDING, f"resumed by {user.name}")
    run_lifecycle.log(session, run.id, f"resumed by {user.name}, from the last checkpoint")


KEPT = (
    *("workspace_id", "repository_id", "dataset_id", "kind", "config", "rollout", "model_path", "dataset"),
    *("dataset_path", "dataset_sha256", "dataset_rows", "branch", "commit_sha", "rows", "sampled_rows", "sample_seed"),
    *("snapshot", "tags"),
)
"""What a run is given when it is submitted."""


def once_more(
    session: Session, vault: Vault, run: tables.Run, user: tables.User, given: Mapping[str, str]
) -> tables.Run:
    """A new run of the same config, code, dataset file and rows; the first one stays as it is."""
    _check_inputs(session, run, given)
    scopes, _ = secrets.resolve(session, run.workspace_id, user.id, run.secret_scopes, given)
    again = tables.Run(
        **{name: getattr(run, name) for name in KEPT},
        id=tables.new_id(),
        creator_id=user.id,
        name=run_lifecycle.next_name(session, run.workspace_id, run.kind, run.rollout),
        status=RunStatus.PENDING.value,
        secret_scopes=scopes,
    )
    session.add(again)
    job_queue.put(session, again)
    secrets.put_for_run(session, vault, again, user.id, given)
    reason = f"a retry of {run.name} by {user.name}"
    session.add(tables.RunEvent(run_id=again.id, before=None, status=again.status, reason=reason))
    run_lifecycle.log(session, again.id, reason)
    return again


def _check_inputs(session: Session, run: tables.Run, given: Mapping[str, str]) -> None:
    """Conflict, ValidationError or NotFound when what the run needs is no longer there."""
    _check_secrets(session, run, given)
    if not run.dataset_path or run.dataset_id is None:
        raise Conflict(f"dataset {run.dataset!r} of run {run.name!r} was deleted", hint="submit a new run")


def _raise_budget(session: Session, run: tables.Run, asked: RetryRun) -> None:
    """The limits that are given, in place of those of the run's config."""
    if asked.max_cost is None and asked.max_tokens_total is None:
        return
    evaluation = run.config.get("evaluation", tables.StoredEvaluation()).copy()
    if asked.max_cost is not None:
        evaluation["max_cost"] = asked.max_cost
    if asked.max_tokens_total is not None:
        evaluation["max_tokens_total"] = asked.max_tokens_total
    config = run.config.copy()
    config["evaluation"] = evaluation
    run.config = config
    limits = [f"{name} = {value}" for name in ("max_cost", "max_tokens_total") if (value := evaluation.get(name))]
    run_lifecycle.log(session, run.id, f"the budget of the run is now {', '.join(limits)}")


def _check_budget(run: tables.Run) -> None:
    """Conflict when what the run has spent, failed rollouts included, reaches its budget: no rollout would start."""
    if run.report is None:
        return
    limits = EvalPlan.from_config(EvalConfig.model_validate(run.config), name=run.name, dataset=run.dataset).budget
    spent = Report.model_validate(run.report).spent()
    used_up = limits.used_up(spent.cost_usd, spent.tokens)
    if used_up is None:
        return
    flag = "--max-cost USD" if limits.reached(spent.cost_usd, spent.tokens) == "max_cost" else "--max-tokens-total N"
    raise Conflict(
        f"{used_up}: a retry of run {run.name!r} would start no rollout",
        hint=f"osmosis eval retry {run.name} {flag} sets a larger budget for the whole run",
        spent={"cost_usd": round(spent.cost_usd, 6), "tokens": spent.tokens},
    )


def _refuse_elsewhere(run: tables.Run) -> None:
    """Conflict when the run was made elsewhere: what it needs is there."""
    if run.imported is None:
        return
    name = run.imported["name"]
    local = {"eval_run_name": name, "config_path": run.imported["provenance"].get("config_path")}
    raise Conflict(
        f"run {run.name!r} was made on another machine and must be retried there",
        hint="retry it there with --retry-failed, then: osmosis eval upload NAME --replace",
        local_run={key: value for key, value in local.items() if value},
    )


def _check_secrets(session: Session, run: tables.Run, given: Mapping[str, str]) -> None:
    unknown = sorted(set(given) - set(run.secret_scopes))
    if unknown:
        raise ValidationError(f"run {run.name!r} does not use: {', '.join(unknown)}", field="secrets")
    own = sorted(name for name, scope in run.secret_scopes.items() if scope == "run" and name not in given)
    if own:
        raise ValidationError(
            f"these secrets were set only for run {run.name!r} and are deleted: {', '.join(own)}",
            hint="give them again: --secrets-file FILE",
            run_secret_names=own,
        )
    names = [name for name, scope in run.secret_scopes.items() if scope != "run"]
    _, missing = secrets.resolve(session, run.workspace_id, run.creator_id, names, given)
    if missing:
        raise NotFound(f"Secret(s) not found: {', '.join(missing)}", hint=f"osmosis secret set {missing[0]}")
