from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path

from pydantic import ValidationError as PydanticError

from osmosis.base.jsonable import JsonObject
from osmosis.cli.core.context import AppContext
from osmosis.client import PlatformClient
from osmosis.errors import UsageError
from osmosis.records.api.datasets import DatasetEntry
from osmosis.records.api.workspaces import SecretRow
from osmosis.records.config.run_config import EvalConfig, TrainingConfig
from osmosis.records.run.plan import choose_endpoint, split_model
from osmosis.records.run.source import SnapshotNote, Source, SyncState
from osmosis.records.run.status import NOUNS, RunKind
from osmosis.workspace.git import Snapshot, push_snapshot
from osmosis.workspace.layout import Workspace

AnyConfig = EvalConfig | TrainingConfig


@dataclass(frozen=True)
class SubmitOptions:
    kind: RunKind
    config: str | None = None
    """Path or name; None for the only config."""
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
    every_row: bool = False
    """Run all rows instead of a sample, where neither flag nor config sets a limit."""

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
            ("advanced", "shards", "--shards"): parse_shards(self.shards),
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


def parse_shards(text: str | None) -> int | str | None:
    if text is None or text == "auto":
        return text
    if not text.isdigit() or not int(text):
        raise UsageError(f"--shards {text!r}: a number of jobs, or auto")
    return int(text)


@dataclass(frozen=True)
class PlatformAnswers:
    sync: Future[SyncState]
    secrets: Future[list[SecretRow]]
    datasets: dict[str, Future[DatasetEntry]]
    """Keyed by the table of the config that names it."""

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
    dataset_rows: int | None = None
    """Number of rows on the platform; None when not yet counted."""

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
