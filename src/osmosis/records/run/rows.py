from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from typing import Annotated

from pydantic import Field, ValidationError as PydanticError

from osmosis.base.files import tomllib
from osmosis.base.jsonable import JsonObject, copy_json
from osmosis.errors import ValidationError
from osmosis.records.base import Record, Strict, utc_now

Key = tuple[int, str, int]  # Step (0 outside training), row key, attempt


def nth_key(content_hash: str, number: int) -> str:
    return content_hash if number == 1 else f"{content_hash}#{number}"


def place_key(row_index: int) -> str:
    return f"@{row_index}"


class DerivedKeys:
    """Row keys of the rollouts of one run, in the order in which they were stored."""

    def __init__(self, known: Mapping[int, str] | None = None) -> None:
        self._made: dict[tuple[int, str | None], str] = {}
        self._numbers: dict[str, int] = {}
        self._known = known or {}
        for key in self._known.values():
            content_hash, _, number = key.partition("#")
            self._numbers[content_hash] = max(self._numbers.get(content_hash, 0), int(number or 1))

    def of(self, row_key: str | None, row_index: int, content_hash: str | None) -> str:
        if row_key is not None:
            return row_key
        key = self._known.get(row_index) or self._made.get((row_index, content_hash))
        if key is None:
            key = self._made[(row_index, content_hash)] = self._make(row_index, content_hash)
        return key

    def _make(self, row_index: int, content_hash: str | None) -> str:
        if content_hash is None:
            return place_key(row_index)
        number = self._numbers[content_hash] = self._numbers.get(content_hash, 0) + 1
        return nth_key(content_hash, number)


FORMATS = ("jsonl", "json", "csv", "parquet")
MAX_BYTES = 5 * 1024**3
MIN_ROWS = 4
TASK_KEYS = ("task_name", "task", "task_id", "task_path", "harbor_task")
"""Keys of a row's metadata that name a Harbor task."""


@dataclass(slots=True)
class Row:
    index: int  # Zero-based position in the file
    data: JsonObject  # Every column, required ones included: score functions receive this dict
    line: int | None = None  # One-based line in the file, for messages
    content_hash: str | None = None  # Hash of `data`, by `datasets.scan.row_hash`; None until then
    key: str | None = None  # Key, wherever it stands; None until it has one

    @property
    def ground_truth(self) -> str | None:
        value = self.data.get("ground_truth", self.data.get("label"))
        return None if value is None else str(value)

    @property
    def metadata(self) -> JsonObject | None:
        value = self.data.get("metadata")
        return value if isinstance(value, dict) else None

    def messages(self) -> list[JsonObject]:
        data = self.data
        messages, system, prompt = data.get("messages"), data.get("system_prompt"), data.get("user_prompt")
        if isinstance(messages, list) and messages and prompt is None:
            return [{key: copy_json(value) for key, value in message.items()} for message in messages]
        opening: list[JsonObject] = []
        if system:
            opening.append({"role": "system", "content": str(system)})
        if prompt is not None:
            opening.append({"role": "user", "content": str(prompt)})
        return opening


class DatasetStatus(str, Enum):
    UPLOADING = "uploading"
    PENDING = "pending"
    PROCESSING = "processing"
    UPLOADED = "uploaded"
    ERROR = "error"
    CANCELLED = "cancelled"


class Dataset(Record):
    id: str
    file_name: str
    """Stem of the file: the name by which configs refer to it."""
    file_size: int
    status: DatasetStatus
    file_format: str
    row_count: int | None = None
    sha256: str | None = None
    data_preview: list[JsonObject] | None = None
    error: str | None = None
    creator_name: str | None = None
    created_at: datetime
    updated_at: datetime


_SAMPLE = 10


def count_sampled(total: int, limit: int | None) -> int:
    return min(limit, total) if limit is not None else max(1, total // _SAMPLE)


ReducerName = Annotated[str, Field(pattern=r"^(mean|median|mode|max|(at-least-|pass@|pass\^)[1-9][0-9]{0,3})$")]
"""`mean`, `median`, `mode`, `max`, `at-least-K`, `pass@K` or `pass^K`."""


class Shard(Record):
    """A part of a run's rows, with a job of its own: neighbouring rows, so that a range of indices describes it."""

    number: int = Field(default=0, ge=0)
    count: int = Field(default=1, ge=1)
    concurrency: int | None = Field(default=None, ge=1)
    """Rollouts of the run it may have in flight when it starts; None: all that the config allows."""

    def of(self, rows: Sequence[int]) -> list[int]:
        first, end = (len(rows) * number // self.count for number in (self.number, self.number + 1))
        return list(rows[first:end])


class Spend(Record):
    """Cost of models, agents' and judges' together."""

    cost_usd: float = 0.0
    tokens: int = 0


def count_shards(shards: int | str, *, rows: int, concurrency: int, room: int) -> int:
    return max(1, min(room if shards == "auto" else int(shards), rows, concurrency))


def share_concurrency(concurrency: int, index: int, count: int) -> int:
    each, more = divmod(concurrency, max(1, count))
    return max(1, each + (index < more))


NAME = "quarantine.toml"


class QuarantinedRow(Strict):
    key: str = Field(min_length=1, max_length=300)
    """The row's `id`, or its key where the dataset has none."""
    reason: str = Field(min_length=1, max_length=500)
    until: date
    """The last day, in UTC."""
    dataset: str = ""
    """Only dataset it applies to; empty: any."""

    def expired(self, today: date | None = None) -> bool:
        return (today or utc_now().date()) > self.until

    @property
    def line(self) -> str:
        if self.expired():
            return f"row {self.key} was in quarantine until {self.until}, and counts again: {self.reason}"
        return f"row {self.key} is in quarantine until {self.until}: {self.reason}"


class RowQuarantine(Strict):
    """The content of `quarantine.toml`."""

    row: list[QuarantinedRow] = Field(default_factory=list)

    def of(self, datasets: Iterable[str]) -> "RowQuarantine":
        return RowQuarantine(row=[entry for entry in self.row if entry.dataset in {"", *datasets}])

    def about(self, key: str) -> list[QuarantinedRow]:
        return [entry for entry in self.row if entry.key == key]

    def sorted_out(self, keys: Iterable[str]) -> "SortedOut":
        present = set(keys)
        entries = [entry for entry in self.row if entry.key in present]
        active = [entry for entry in entries if not entry.expired()]
        excluded = {entry.key for entry in active}
        return SortedOut(active, [entry for entry in entries if entry.expired() and entry.key not in excluded])

    @property
    def active(self) -> set[str]:
        return {entry.key for entry in self.row if not entry.expired()}


def parse_quarantine(text: str, where: str = NAME) -> RowQuarantine:
    try:
        return RowQuarantine.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ValidationError(f"{where}: {error}") from error
    except PydanticError as error:
        problems = [f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors()]
        hint = f"each [[row]] has {', '.join(QuarantinedRow.model_fields)}"
        raise ValidationError(f"{where}: {'; '.join(problems)}", hint=hint) from error


@dataclass(frozen=True, slots=True)
class SortedOut:
    active: Sequence[QuarantinedRow]
    expired: Sequence[QuarantinedRow]

    @property
    def keys(self) -> set[str]:
        return {entry.key for entry in self.active}

    @property
    def lines(self) -> list[str]:
        return [entry.line for entry in (*self.active, *self.expired)]
