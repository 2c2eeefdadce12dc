from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path

from pydantic import ValidationError as PydanticError

from osmosis.base.jsonable import JsonObject
from osmosis.cli.core.context import AppContext, read_secrets_file
from osmosis.client import PlatformClient
from osmosis.errors import AuthRequired, InteractiveRequired, NotFound, OsmosisError, UsageError, ValidationError
from osmosis.records.api.datasets import DatasetEntry
from osmosis.records.api.workspaces import SecretRow
from osmosis.records.base import Problem
from osmosis.records.config.experiment import Experiment, TrainingExperiment
from osmosis.records.config.run_config import EvalConfig, TrainingConfig
from osmosis.records.run.plan import choose_endpoint, split_model
from osmosis.records.run.source import SnapshotNote, Source, SyncState
from osmosis.records.run.status import NOUNS, RunKind
from osmosis.workspace.config_file import ConfigFile, config_error
from osmosis.workspace.git import Snapshot, make_snapshot, push_snapshot, read_source
from osmosis.workspace.layout import Workspace
from osmosis.workspace.preflight import check_submit, gather

SYNC_TIMEOUT_S = 180.0
AnyConfig = EvalConfig | TrainingConfig


@dataclass(frozen=True)
class SubmitOptions:
    kind: RunKind
    config: str | None = None  # Path or name; None for the only config
    wait: bool = False
    wait_sync: bool = False
    allow_dirty: bool = False
    snapshot: bool = False
    secrets_file: str | None = None
    fail_under: float | None = None
    force: bool = False
    probe: int | None = None
    # Changes of the config, of which None keeps its value. The file is unchanged.
    model: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    n: int | None = None
    limit: int | None = None
    held_out_of: str | None = None
    name: str | None = None
    shards: str | None = None
    tags: tuple[str, ...] = ()
    max_cost: float | None = None
    max_tokens_total: int | None = None
    priority: int | None = None
    batch_size: int | None = None
    params: JsonObject = field(default_factory=dict)
    every_row: bool = False  # Run all rows instead of a sample, where neither flag nor config sets a limit

    @classmethod
    def from_flags(cls, kind: RunKind, flags: object) -> "SubmitOptions":
        given = vars(flags)
        values = {field.name: given[field.name] for field in fields(cls) if field.name in given}
        return cls(kind, **values, tags=tuple(given.get("tag", ())))

    @property
    def noun(self) -> str:
        return NOUNS[self.kind]

    def apply(self, config: AnyConfig) -> AnyConfig:
        name, base_url = (None, None) if self.model is None else split_model(self.model)
        if name is not None and not name.strip():
            raise UsageError("--model: the model name is empty", hint="--model openai/gpt-5-mini")
        params = {**config.advanced.params, **self.params} if isinstance(config, EvalConfig) and self.params else None
        values = {
            ("experiment", "model_path", "--model"): name,
            ("evaluation", "n", "--n"): self.n,
            ("evaluation", "limit", "--limit"): self.limit,
            ("evaluation", "held_out_of", "--held-out-of"): self.held_out_of,
            ("evaluation", "max_cost", "--max-cost"): self.max_cost,
            ("evaluation", "max_tokens_total", "--max-tokens-total"): self.max_tokens_total,
            ("evaluation", "batch_size", "--batch-size"): self.batch_size,
            ("advanced", "params", "--param"): params,
            ("advanced", "priority", "--priority"): self.priority,
            ("advanced", "shards", "--shards"): int(shards) if (shards := self.shards or "").isdigit() else self.shards,
        }
        values = {field: value for field, value in values.items() if value is not None}
        moved = isinstance(config, EvalConfig) and any((self.model, self.base_url, self.api_key_env))
        if not values and not moved:
            return config
        tables = config.to_dict()
        for (table, key, _), value in values.items():
            tables.setdefault(table, {})[key] = value
        if moved:
            assert isinstance(config, EvalConfig)
            url, key_name = choose_endpoint(config, self.model, self.base_url)
            endpoint = {"base_url": base_url or url, "api_key_env": self.api_key_env or key_name}
            advanced = {k: v for k, v in tables.get("advanced", {}).items() if k not in endpoint}
            tables["advanced"] = {**advanced, **{k: v for k, v in endpoint.items() if v}}
        try:
            return type(config).model_validate(tables)
        except PydanticError as error:
            first = error.errors()[0]
            flag = next((flag for _, key, flag in values if key in first["loc"]), "the flags")
            raise UsageError(f"{flag}: {first['msg']}") from error

    def select_all_rows(self, config: AnyConfig, rows: int | None) -> AnyConfig:
        if not self.every_row or not rows or not isinstance(config, EvalConfig) or config.evaluation.limit:
            return config
        return config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"limit": rows})})


@dataclass(frozen=True)
class PlatformAnswers:
    sync: Future[SyncState]
    secrets: Future[list[SecretRow]]
    datasets: dict[str, Future[DatasetEntry]]  # Keyed by the table of the config that names it

    @classmethod
    def ask(cls, client: PlatformClient, config: AnyConfig) -> "PlatformAnswers":
        pool = ThreadPoolExecutor(3)
        try:
            return cls(
                pool.submit(client.sync.state),
                pool.submit(client.secrets.all if config.secret_names() else list),
                {name: pool.submit(client.datasets.get, each.dataset) for name, each in config.environments.items()},
            )
        finally:
            pool.shutdown(wait=False)


@dataclass
class SubmitCase:
    ctx: AppContext
    options: SubmitOptions
    client: PlatformClient
    workspace: Workspace
    path: Path
    config: AnyConfig
    source: Source | None
    answers: PlatformAnswers
    snapshot: Snapshot | None = None
    secrets: dict[str, str] = field(default_factory=dict)
    dataset_rows: int | None = None  # Number of rows on the platform; None when not yet counted

    def push(self) -> None:
        if self.snapshot is not None:
            push_snapshot(self.workspace.root, self.snapshot)

    def request_body(self) -> dict[str, object]:
        snapshot, options = self.snapshot, self.options
        keys: JsonObject = {"name": options.name} if options.name is not None else {}
        keys |= {"tags": list(options.tags)} if options.tags else {}
        if snapshot is None:
            return {**self.config.to_request(self.secrets), **keys}
        experiment = self.config.experiment.model_copy(update={"commit_sha": snapshot.commit})
        note = SnapshotNote(parent=snapshot.parent, files=list(snapshot.files), diff=snapshot.diff)
        request = self.config.model_copy(update={"experiment": experiment}).to_request(self.secrets)
        return {**request, "snapshot": note.to_dict(), **keys}


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

    return case.client.sync.wait_for(commit, source.branch, timeout_s=SYNC_TIMEOUT_S, report=report)


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
        client = ctx.client()
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
