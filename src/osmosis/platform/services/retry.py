"""Again, please: the failed and skipped rollouts of a run that is over, in a fresh work folder.

What succeeded stays and is not repeated; a run without any rollout that failed or was skipped and without an
unfinished rest starts from nothing. Values given with the first submit are gone by then and are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import Conflict, NotFound, ValidationError
from osmosis.records.run import RunStatus

from .. import tables
from ..security.vault import Vault
from . import rollouts, runs, secrets


def retry(session: Session, vault: Vault, run: tables.Run, user: tables.User, given: Mapping[str, str]) -> int:
    """Make a run pending again; how many rollouts are repeated (0 = all of it) is the answer."""
    if not RunStatus(run.status).over:
        raise Conflict(f"run {run.name!r} is {run.status}: only a run that is over can be retried")
    _check_secrets(session, run, given)
    if not run.dataset_path or run.dataset_id is None:
        raise Conflict(f"dataset {run.dataset!r} of run {run.name!r} was deleted", hint="submit a new run")
    secrets.put_for_run(session, vault, run, user.id, given)
    again = rollouts.drop_unsuccessful(session, run.id)
    total = run.sampled_rows * int((run.config.get("evaluation") or {}).get("n", 1))
    kept = session.scalar(sa.select(sa.func.count()).select_from(tables.Rollout).where(tables.Rollout.run_id == run.id))
    if kept == total:
        session.execute(sa.delete(tables.Rollout).where(tables.Rollout.run_id == run.id))
        run.report = None
    run.retries += 1
    run.starts = 0
    run.lease_hash = None
    run.progress = run.started_at = None
    runs.switch_status(session, run, RunStatus.PENDING, f"retried by {user.name}")
    runs.log(session, run.id, f"retry {run.retries}: {again or total} rollouts again")
    return again


def _check_secrets(session: Session, run: tables.Run, given: Mapping[str, str]) -> None:
    unknown = sorted(set(given) - set(run.secret_scopes))
    if unknown:
        raise ValidationError(f"run {run.name!r} does not use: {', '.join(unknown)}", field="secrets")
    own = sorted(name for name, scope in run.secret_scopes.items() if scope == "run" and name not in given)
    if own:
        raise ValidationError(
            f"these values were given with run {run.name!r} only and are gone: {', '.join(own)}",
            hint="give them again: --secrets-file FILE",
            run_secret_names=own,
        )
    names = [name for name, scope in run.secret_scopes.items() if scope != "run"]
    _, missing = secrets.resolve(session, run.workspace_id, run.creator_id, names, given)
    if missing:
        raise NotFound(f"Secret(s) not found: {', '.join(missing)}", hint=f"osmosis secret set {missing[0]}")
