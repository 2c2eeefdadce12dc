"""Retry or resume a run. Secret values given with the submit are gone by then, and must be given again."""

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import Conflict, NotFound, NothingToRetry, ValidationError
from osmosis.platform import tables
from osmosis.platform.runs import lifecycle, rollouts
from osmosis.platform.scheduling import queue
from osmosis.platform.vault import Vault
from osmosis.platform.workspaces import secrets
from osmosis.records.api.runs import RetryRun
from osmosis.records.config.run_config import EvalConfig
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.report import Report
from osmosis.records.run.status import RunStatus


def retry(session: Session, vault: Vault, run: tables.Run, user: tables.User, request: RetryRun) -> int:
    """Make a run pending again and return how many rollouts it will make (0: all). Raise NothingToRetry, Conflict."""
    secret_values = request.secrets or {}
    if not RunStatus(run.status).over:
        raise Conflict(f"run {run.name!r} is {run.status}: only a finished run can be retried")
    if run.imported is not None:
        name = run.imported["name"]
        local = {"eval_run_name": name, "config_path": run.imported["provenance"].get("config_path")}
        message = f"run {run.name!r} was made on another machine and must be retried there"
        hint = "retry it there with --retry-failed, then: osmosis eval upload NAME --replace"
        raise Conflict(message, hint=hint, local_run={key: value for key, value in local.items() if value})
    _check_inputs(session, run, secret_values)
    secrets.store_for_run(session, vault, run, user.id, secret_values)
    run.secret_scopes, _ = secrets.resolve(session, run.workspace_id, run.creator_id, run.secret_scopes, secret_values)
    is_search = "optimize" in run.config
    if is_search and (run.status == RunStatus.FINISHED.value or request.max_cost or request.max_tokens_total):
        raise Conflict(f"run {run.name!r} ends by its own budget", hint="submit it again with another in [optimize]")
    if not is_search:  # whose failures count, and were learned from
        rollouts.drop_unsuccessful(session, run.id)
    total = run.sampled_rows * run.config.get("evaluation", {}).get("n", 1)
    missing = 1 if is_search else total - len(rollouts.list_keys(session, run.id))
    _raise_budget(session, run, request)
    if missing:
        _check_budget(run)
    else:
        if not request.everything:
            message = f"all {total} rollouts of run {run.name!r} succeeded: a retry would run all of them again"
            hint = f"osmosis eval resume {run.name} --yes runs them again and drops what is there"
            raise NothingToRetry(message, hint=hint, rollouts=total)
        session.execute(sa.delete(tables.Rollout).where(tables.Rollout.run_id == run.id))
        run.report = None
    run.retries += 1
    queue.enqueue_run(session, run)
    run.progress = run.started_at = None
    lifecycle.switch_status(session, run, RunStatus.PENDING, f"retried by {user.name}")
    lifecycle.log(session, run, f"retry {run.retries}: {missing or total} of {total} rollouts")
    return missing


def resume(
    session: Session, vault: Vault, run: tables.Run, user: tables.User, secret_values: Mapping[str, str]
) -> None:
    if not RunStatus(run.status).over:
        raise Conflict(f"run {run.name!r} is {run.status} already", hint=f"osmosis train wait {run.name}")
    if run.status == RunStatus.FINISHED.value:
        raise Conflict(f"run {run.name!r} is complete", hint=f"osmosis train resume {run.name} --fresh trains anew")
    _check_inputs(session, run, secret_values)
    secrets.store_for_run(session, vault, run, user.id, secret_values)
    run.secret_scopes, _ = secrets.resolve(session, run.workspace_id, run.creator_id, run.secret_scopes, secret_values)
    queue.enqueue_run(session, run)
    lifecycle.switch_status(session, run, RunStatus.PENDING, f"resumed by {user.name}")
    lifecycle.log(session, run, f"resumed by {user.name}, from the last checkpoint")


KEPT_COLUMNS = (
    *("workspace_id", "repository_id", "dataset_id", "kind", "config", "rollout", "model_path", "dataset"),
    *("dataset_path", "dataset_sha256", "dataset_rows", "branch", "commit_sha", "rows", "sampled_rows", "sample_seed"),
    *("snapshot", "tags", "environments"),
)


def copy_run(
    session: Session, vault: Vault, run: tables.Run, user: tables.User, secret_values: Mapping[str, str]
) -> tables.Run:
    _check_inputs(session, run, secret_values)
    scopes, _ = secrets.resolve(session, run.workspace_id, user.id, run.secret_scopes, secret_values)
    again = tables.Run(
        **{name: getattr(run, name) for name in KEPT_COLUMNS},
        id=tables.new_id(),
        creator_id=user.id,
        name=lifecycle.next_name(session, run.workspace_id, run.rollout),
        status=RunStatus.PENDING.value,
        secret_scopes=scopes,
    )
    session.add(again)
    queue.enqueue_run(session, again)
    secrets.store_for_run(session, vault, again, user.id, secret_values)
    reason = f"a retry of {run.name} by {user.name}"
    session.add(tables.RunEvent(run_id=again.id, before=None, status=again.status, reason=reason))
    lifecycle.log(session, again, reason)
    return again


def _raise_budget(session: Session, run: tables.Run, request: RetryRun) -> None:
    if request.max_cost is None and request.max_tokens_total is None:
        return
    evaluation = run.config.get("evaluation", tables.StoredEvaluation()).copy()
    if request.max_cost is not None:
        evaluation["max_cost"] = request.max_cost
    if request.max_tokens_total is not None:
        evaluation["max_tokens_total"] = request.max_tokens_total
    config = run.config.copy()
    config["evaluation"] = evaluation
    run.config = config
    limits = [f"{name} = {value}" for name in ("max_cost", "max_tokens_total") if (value := evaluation.get(name))]
    lifecycle.log(session, run, f"the budget of the run is now {', '.join(limits)}")


def _check_budget(run: tables.Run) -> None:
    if run.report is None:
        return
    limits = EvalPlan.from_config(EvalConfig.model_validate(run.config), name=run.name, dataset=run.dataset).budget
    spent = Report.model_validate(run.report).spent()
    used_up = limits.used_up(spent.cost_usd, spent.tokens)
    if used_up is None:
        return
    flag = "--max-cost USD" if limits.reached(spent.cost_usd, spent.tokens) == "max_cost" else "--max-tokens-total N"
    message = f"{used_up}: a retry of run {run.name!r} would start no rollout"
    hint = f"osmosis eval resume {run.name} {flag} sets a larger budget for the whole run"
    raise Conflict(message, hint=hint, spent={"cost_usd": round(spent.cost_usd, 6), "tokens": spent.tokens})


def _check_inputs(session: Session, run: tables.Run, secret_values: Mapping[str, str]) -> None:
    unknown = sorted(set(secret_values) - set(run.secret_scopes))
    if unknown:
        raise ValidationError(f"run {run.name!r} does not use: {', '.join(unknown)}", field="secrets")
    own = sorted(name for name, scope in run.secret_scopes.items() if scope == "run" and name not in secret_values)
    if own:
        message = f"these secrets were set only for run {run.name!r} and are deleted: {', '.join(own)}"
        raise ValidationError(message, hint="give them again: --secrets-file FILE", run_secret_names=own)
    names = [name for name, scope in run.secret_scopes.items() if scope != "run"]
    _, missing = secrets.resolve(session, run.workspace_id, run.creator_id, names, secret_values)
    if missing:
        raise NotFound(f"Secret(s) not found: {', '.join(missing)}", hint=f"osmosis secret set {missing[0]}")
    if not run.dataset_path or run.dataset_id is None:
        raise Conflict(f"dataset {run.dataset!r} of run {run.name!r} was deleted", hint="submit a new run")
