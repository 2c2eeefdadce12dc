"""What stops a submit: the wrong checkout, code that the platform has not, a dataset that is not there. All findings
are said at once, each with its fix, so that nobody mends one thing to be told of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pydantic import ValidationError as PydanticError

from osmosis.errors import AuthRequired, InteractiveRequired, NotFound, OsmosisError, ValidationError
from osmosis.records.config import Experiment
from osmosis.records.problem import Problem
from osmosis.records.source import SyncState
from osmosis.workspace.config_file import ConfigFile, refused
from osmosis.workspace.gitwrite import make_snapshot
from osmosis.workspace.layout import Workspace
from osmosis.workspace.preflight import Facts, check_submit, gather

from .context import AppContext
from .submit_case import SubmitCase, SubmitOptions
from .submit_secrets import find_secrets, nowhere

if TYPE_CHECKING:
    from osmosis.records.contract.uploads import DatasetEntry

SYNC_TIMEOUT_S = 180.0


def check_scope(case: SubmitCase) -> None:
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


def check_code(case: SubmitCase) -> list[Problem]:
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
    say_findings(case.ctx, found)
    experiment = case.config.experiment
    if options.snapshot and not experiment.commit_sha and not experiment.branch:
        case.snapshot = make_snapshot(case.workspace.root)
    return []


def refusal(case: SubmitCase, errors: list[Problem], missing: Sequence[str] = ()) -> OsmosisError:
    """One error with everything that stops this submit; missing secrets alone are a question nobody can be asked."""
    found = list(errors)
    try:
        name = case.config.experiment.dataset
        found += _dataset_problems(lambda: case.asked.dataset, name)
        missing = missing or find_secrets(case)
    except OsmosisError:
        pass  # what the platform cannot be asked now does not hide what is wrong here
    for unset in _secret_problems(missing):
        if not found:
            return InteractiveRequired(unset.what, hint=unset.fix, missing=list(missing), flags=["--secrets-file"])
        found.append(unset)
    first = f"{found[0].where}: {found[0].what}" if found[0].where else found[0].what
    what = first if len(found) == 1 else f"{len(found)} problems"
    return ValidationError(f"not submitted: {what}", hint=found[0].fix, issues=[_issue(one) for one in found])


def _issue(problem: Problem) -> dict[str, object]:
    return {"key": problem.code, "message": problem.what, "where": problem.where, "fix": problem.fix}


def _secret_problems(missing: Sequence[str]) -> list[Problem]:
    if not missing:
        return []
    fix = f"osmosis secret set {missing[0]}, or use --secrets-file FILE"
    what = f"missing secrets: {', '.join(missing)}"
    return [Problem(code="missing-secret", what=what, where="secrets.required", fix=fix)]


def _dataset_problems(ask: Callable[[], DatasetEntry], name: str) -> list[Problem]:
    try:
        row = ask()
    except NotFound:
        fix = f"osmosis dataset upload {name}.jsonl"
        return [Problem(code="no-dataset", what=f"there is no dataset {name!r}", where="experiment.dataset", fix=fix)]
    if row.ready:
        return []
    what = f"dataset {name!r} is not ready: {row.status}"
    return [
        Problem(code="dataset-not-ready", what=what, where="experiment.dataset", fix=f"osmosis dataset info {name}")
    ]


def invalid_config(
    ctx: AppContext, options: SubmitOptions, workspace: Workspace, file: ConfigFile, said: list[Problem]
) -> ValidationError:
    """A config with errors: refused with all of them, and with whatever else can already be known to stop it."""
    error = refused(file, [p for p in said if p.severity == "error"])
    found: list[Problem] = []
    try:
        experiment = Experiment.model_validate(file.data.get("experiment"))
        facts = gather(workspace.root, experiment)
        found = _of_code(options, facts, experiment)
        with ctx.client() as client:
            named = facts.source is not None and facts.source.identity is not None
            found = _of_code(options, facts, experiment, client.sync.state() if named else None)
            found += _dataset_problems(lambda: client.datasets.get(experiment.dataset), experiment.dataset)
            found += _secret_problems(nowhere(ctx, client, file.data.get("secrets"), options.secrets_file))
    except AuthRequired as login:
        found.append(_login_problem(login))
    except (OsmosisError, PydanticError):
        return error  # nothing more can be known yet: the config's own errors come first
    if not found:
        return error
    issues = [*error.issues, *map(_issue, found)]
    message = error.message.rpartition(": ")[0]
    return ValidationError(f"{message}: {len(issues)} problems", hint=error.hint, issues=issues)


def logged_out(
    options: SubmitOptions, workspace: Workspace, experiment: Experiment, login: AuthRequired
) -> AuthRequired:
    """The login that is missing, with whatever else can be seen without it."""
    found = _of_code(options, gather(workspace.root, experiment), experiment)
    if not found:
        return login
    issues = [_issue(one) for one in (_login_problem(login), *found)]
    return AuthRequired(f"not submitted: {len(issues)} problems", hint=login.hint, issues=issues)


def _of_code(
    options: SubmitOptions, facts: Facts, experiment: Experiment, state: SyncState | None = None
) -> list[Problem]:
    """What stops a run of this code; without a state, as far as this machine knows."""
    flags = {"allow_dirty": options.allow_dirty, "snapshot": options.snapshot}
    found = check_submit(experiment, facts, state, **flags)
    return [problem for problem in found if problem.severity == "error"]


def _login_problem(login: AuthRequired) -> Problem:
    return Problem(code="not-logged-in", what=login.message, fix=login.hint or "osmosis login")


def _synced(case: SubmitCase) -> SyncState | None:
    """What the platform has. None without a remote that names a repository: git's findings say why."""
    if case.facts.source is None or case.facts.source.identity is None:
        return None
    return case.asked.sync


def _wait_for_sync(case: SubmitCase) -> SyncState | None:
    """Wait until the platform has HEAD; a sync that failed ends the submit with its error."""
    source = case.facts.source
    if source is None or source.commit is None:
        return None
    commit = source.commit

    def said(status: str) -> None:
        case.ctx.output.say(f"waiting for the platform to sync {commit[:10]} ({status})", style="dim")

    return case.client.sync.wait_for(commit, source.branch, timeout_s=SYNC_TIMEOUT_S, said=said)


def say_findings(ctx: AppContext, problems: list[Problem]) -> None:
    for problem in problems:
        if problem.severity == "warning":
            ctx.output.warn(problem.code.upper().replace("-", "_"), problem.line())
        elif problem.severity == "info":
            ctx.output.say(problem.line(), style="dim")
