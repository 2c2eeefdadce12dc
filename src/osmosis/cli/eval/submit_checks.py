"""Checks before a submit: checkout, code, dataset and secrets; all problems are reported at once."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError as PydanticError

from osmosis.cli.core.context import AppContext
from osmosis.cli.core.environment import read_secrets_file
from osmosis.cli.eval.submit_case import AnyConfig, SubmitCase, SubmitOptions
from osmosis.errors import AuthRequired, InteractiveRequired, NotFound, OsmosisError, ValidationError
from osmosis.records.api.datasets import DatasetEntry
from osmosis.records.config.experiment import Experiment, TrainingExperiment
from osmosis.records.config.validation import Problem
from osmosis.records.run.source import SyncState
from osmosis.workspace.config_file import ConfigFile, config_error
from osmosis.workspace.git import make_snapshot, read_source
from osmosis.workspace.layout import Workspace
from osmosis.workspace.preflight import check_submit, gather

SYNC_TIMEOUT_S = 180.0


def check_scope(case: SubmitCase) -> None:
    name = case.ctx.options.workspace
    if not name:
        return
    row = case.client.workspaces.find(name)
    connected = row.identity if row else None
    identity = case.source.identity if case.source else None
    if row is None or connected != identity:
        raise ValidationError(
            f"workspace {name} is connected to {connected or 'no repository'}, this checkout to {identity or 'none'}",
            hint="remove --workspace, or cd into a checkout of that repository",
        )


def check_code(case: SubmitCase) -> list[Problem]:
    options, experiment, source = case.options, case.config.experiment, case.source
    state = case.answers.sync.result() if source is not None and source.identity is not None else None
    root = case.workspace.root
    problems = _check(options, root, case.config.environments, state)
    if options.wait_sync and any(problem.code == "not-synced" for problem in problems):
        problems = _check(options, root, case.config.environments, _wait_for_sync(case))
    if errors := _errors(problems):
        return errors
    warn_of(case.ctx, problems)
    if options.snapshot and not experiment.commit_sha and not experiment.branch:
        case.snapshot = make_snapshot(case.workspace.root)
    return []


def _check(
    options: SubmitOptions, root: Path, environments: Mapping[str, Experiment], state: SyncState | None
) -> list[Problem]:
    problems: list[Problem] = []
    for each in environments.values():
        facts = gather(root, each)
        own = check_submit(each, facts, state, allow_dirty=options.allow_dirty, snapshot=options.snapshot)
        problems += [problem for problem in own if problem not in problems]
    return problems


def _errors(problems: Sequence[Problem]) -> list[Problem]:
    return [problem for problem in problems if problem.severity == "error"]


def _wait_for_sync(case: SubmitCase) -> SyncState | None:
    source = case.source
    if source is None or source.commit is None:
        return None
    commit = source.commit

    def report(status: str) -> None:
        case.ctx.output.say(f"waiting for the platform to sync {commit[:10]} ({status})", style="dim")

    return case.client.sync.wait_for(commit, source.branch, timeout_s=SYNC_TIMEOUT_S, said=report)


def warn_of(ctx: AppContext, problems: Sequence[Problem]) -> None:
    for problem in problems:
        if problem.severity == "warning":
            ctx.output.warn(problem.code.upper().replace("-", "_"), problem.line())
        elif problem.severity == "info":
            ctx.output.say(problem.line(), style="dim")


def find_secrets(case: SubmitCase) -> list[str]:
    required = case.config.secret_names()
    values = read_secrets_file(case.ctx, case.options.secrets_file) if case.options.secrets_file else {}
    if unknown := sorted(set(values) - set(required)):
        message = f"the secrets file has names that the config does not require: {', '.join(unknown)}"
        raise ValidationError(message, hint=f"add them to [secrets].required in {case.path.name}, or remove them")
    case.secrets.update(values)
    if values.keys() >= set(required):
        return []
    registered = {row.name for row in case.answers.secrets.result()}
    missing = [name for name in required if name not in values and name not in registered]
    for name in list(missing):
        if value := case.ctx.environ.get(name):
            case.ctx.output.warn("SECRET_FROM_ENVIRONMENT", f"{name} taken from the environment, for this run only")
            case.secrets[name] = value
            missing.remove(name)
    return missing


def explain_refusal(case: SubmitCase, errors: Sequence[Problem], missing: Sequence[str] = ()) -> OsmosisError:
    problems = list(errors)
    try:
        for table, answer in case.answers.datasets.items():
            problems += _dataset_problems(answer.result, case.config.environments[table].dataset, f"{table}.dataset")
        missing = missing or find_secrets(case)
    except OsmosisError:
        pass  # what the platform cannot be asked now does not hide what is wrong here
    for problem in _secret_problems(missing):
        if not problems:
            return InteractiveRequired(problem.what, hint=problem.fix, missing=list(missing), flags=["--secrets-file"])
        problems.append(problem)
    first = problems[0]
    message = f"{len(problems)} problems" if len(problems) > 1 else f"{first.where}: {first.what}".removeprefix(": ")
    issues = [_issue(problem) for problem in problems]
    return ValidationError(f"not submitted: {message}", hint=first.fix, issues=issues)


def explain_config(
    ctx: AppContext, options: SubmitOptions, workspace: Workspace, file: ConfigFile, config_problems: list[Problem]
) -> ValidationError:
    error = config_error(file, _errors(config_problems))
    problems: list[Problem] = []
    try:
        model = TrainingExperiment if options.kind == "training" else Experiment
        experiment: Experiment = model.model_validate(file.data.get("experiment"))
        source, environments = read_source(workspace.root), {"experiment": experiment}
        problems = _errors(_check(options, workspace.root, environments, None))
        with ctx.client() as client:
            has_remote = source is not None and source.identity is not None
            state = client.sync.state() if has_remote else None
            problems = _errors(_check(options, workspace.root, environments, state))
            name = experiment.dataset
            problems += _dataset_problems(lambda: client.datasets.get(name), name, "experiment.dataset")
            table: object = file.data.get("secrets")
            required = table.get("required") if isinstance(table, dict) else None
            names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
            values = read_secrets_file(ctx, options.secrets_file) if options.secrets_file and names else {}
            registered = {row.name for row in client.secrets.all()} if names else set()
            available = {*values, *registered, *(name for name in names if ctx.environ.get(name))}
            problems += _secret_problems([name for name in dict.fromkeys(names) if name not in available])
    except AuthRequired as login:
        problems.append(_login_problem(login))
    except (OsmosisError, PydanticError):
        return error  # nothing more can be known yet: the config's own errors come first
    if not problems:
        return error
    issues = [*error.issues, *map(_issue, problems)]
    message = error.message.rpartition(": ")[0]
    return ValidationError(f"{message}: {len(issues)} problems", hint=error.hint, issues=issues)


def explain_login(options: SubmitOptions, workspace: Workspace, config: AnyConfig, login: AuthRequired) -> AuthRequired:
    problems = _errors(_check(options, workspace.root, config.environments, None))
    if not problems:
        return login
    issues = [_issue(problem) for problem in (_login_problem(login), *problems)]
    return AuthRequired(f"not submitted: {len(issues)} problems", hint=login.hint, issues=issues)


def _issue(problem: Problem) -> dict[str, object]:
    return {"key": problem.code, "message": problem.what, "where": problem.where, "fix": problem.fix}


def _login_problem(login: AuthRequired) -> Problem:
    return Problem.error("not-logged-in", login.message, fix=login.hint or "osmosis login")


def _secret_problems(missing: Sequence[str]) -> list[Problem]:
    if not missing:
        return []
    fix = f"osmosis secret set {missing[0]}, or use --secrets-file FILE"
    return [Problem.error("missing-secret", f"missing secrets: {', '.join(missing)}", "secrets.required", fix)]


def _dataset_problems(get: Callable[[], DatasetEntry], name: str, where: str) -> list[Problem]:
    try:
        row = get()
    except NotFound:
        fix = f"osmosis dataset upload {name}.jsonl"
        return [Problem.error("no-dataset", f"there is no dataset {name!r}", where, fix)]
    if row.ready:
        return []
    message = f"dataset {name!r} is not ready: {row.status}"
    return [Problem.error("dataset-not-ready", message, where, f"osmosis dataset show {name}")]
