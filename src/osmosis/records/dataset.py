"""Rows and datasets."""

from __future__ import annotations

from datetime import datetime
from enum import Enum

from osmosis.base.json_types import JsonObject
from osmosis.base.light_dataclass import dataclass
from osmosis.base.plain_json import own_copy

from .base import Record
from .rollout import Message

FORMATS = ("jsonl", "json", "csv", "parquet")
MAX_BYTES = 5 * 1024**3
MIN_ROWS = 4


@dataclass(slots=True)
class Row:
    """One dataset row, as read. No pydantic model: the reader's own rules have checked it."""

    index: int
    """Zero-based position in the file."""
    data: JsonObject
    """Every column, required ones included: this whole dict is what score functions receive."""
    line: int | None = None
    """One-based line in the file, for messages."""
    content_hash: str | None = None
    """Of `data`, as `datasets.scan.row_hash` makes it; None when nobody has made it yet."""
    key: str | None = None
    """Which row it is, wherever it stands (`records.keys`); None when nobody has given it one yet."""

    @property
    def ground_truth(self) -> str | None:
        value = self.data.get("ground_truth", self.data.get("label"))
        return None if value is None else str(value)

    @property
    def metadata(self) -> JsonObject | None:
        value = self.data.get("metadata")
        return value if isinstance(value, dict) else None

    def messages(self) -> list[Message]:
        """The opening messages: a chat-style `messages` column as it is, else the optional system prompt, then the
        user prompt."""
        data = self.data
        given, system, prompt = data.get("messages"), data.get("system_prompt"), data.get("user_prompt")
        if isinstance(given, list) and given and prompt is None:
            return [{key: own_copy(value) for key, value in message.items()} for message in given]
        opening: list[Message] = []
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
    """A dataset on the platform."""

    id: str
    file_name: str
    """The name by which configs refer to it: the file's stem."""
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
