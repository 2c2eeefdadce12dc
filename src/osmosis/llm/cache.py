"""Answers from disk: stored by request, attempt number and how often this rollout asked the same before, or those
of a journal."""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import orjson

from osmosis.base.files import write_bytes
from osmosis.base.jsonable import JsonObject
from osmosis.errors import ModelError, NotFound
from osmosis.llm.model import ChatRequest, Completion, Model
from osmosis.records.run.plan import ModelSpec
from osmosis.records.run.rollout import Category, Message, Usage

_FIELDS = (
    *("message", "finish_reason", "model", "token_ids", "logprobs", "prompt_token_ids", "raw_id"),
    *("top_logprobs", "choices", "fingerprint"),
)
_REMEMBERED = 100_000


class CachedModel:
    """Asks `inner` once per distinct question; stores one small file per answer under `folder`."""

    def __init__(self, inner: Model, folder: Path) -> None:
        self.spec = inner.spec
        self.inner = inner
        self.folder = folder
        self.hits = 0
        self._asked: OrderedDict[tuple[str, str], int] = OrderedDict()

    async def complete(self, request: ChatRequest) -> Completion:
        path = self._path(request)
        cached = _read(path)
        if cached is not None:
            self.hits += 1
            return cached
        completion = await self.inner.complete(request)
        stored = {name: getattr(completion, name) for name in _FIELDS}
        stored["usage"] = completion.usage.to_dict()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_bytes(path, orjson.dumps(stored))
        return completion

    async def close(self) -> None:
        await self.inner.close()

    def _path(self, request: ChatRequest) -> Path:
        spec = self.spec
        question = [
            [spec.kind, spec.name, spec.base_url, spec.seed, {**spec.params, **request.params}],
            request.messages,
            request.tools,
            request.attempt,
        ]
        digest = hashlib.sha256(orjson.dumps(question, option=orjson.OPT_SORT_KEYS, default=str)).hexdigest()
        key = (request.rollout_id, digest)
        nth = self._asked.get(key, 0)
        self._asked[key] = nth + 1
        if len(self._asked) > _REMEMBERED:
            self._asked.popitem(last=False)
        return self.folder / digest[:2] / f"{digest}-{nth}.json"


def _read(path: Path) -> Completion | None:
    try:
        stored: JsonObject = orjson.loads(path.read_bytes())
        fields: JsonObject = {name: stored[name] for name in _FIELDS if name in stored}
        return Completion(**fields, usage=Usage(**stored["usage"]), cached=True)
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return None


_COMPARED = ("role", "content", "tool_calls", "tool_call_id")


class ReplayModel:
    """Answers from `spec.name`, the path of a journal's `rollouts.jsonl` or of its folder."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        path = Path(spec.name)
        self.path = path / "rollouts.jsonl" if path.is_dir() else path
        self._offsets = _index(self.path)
        self._lines = self.path.open("rb")

    async def complete(self, request: ChatRequest) -> Completion:
        key = (request.row_index, request.attempt)
        offset = self._offsets.get(key)
        if offset is None:
            raise self._refusal(f"row {key[0]} attempt {key[1]} is not in {self.path}")
        self._lines.seek(offset)
        rollout: JsonObject = orjson.loads(self._lines.readline())
        recorded: list[Message] = rollout.get("messages") or []
        position = len(request.messages)
        if position >= len(recorded) or recorded[position].get("role") != "assistant":
            raise self._refusal(f"row {key[0]} attempt {key[1]}: the recording has no answer after {position} messages")
        for i, (request_message, was) in enumerate(zip(request.messages, recorded, strict=False)):
            if any(request_message.get(name) != was.get(name) for name in _COMPARED):
                raise self._refusal(f"row {key[0]} attempt {key[1]}: message {i} differs from the recording")
        answers = sum(1 for m in recorded[:position] if m.get("role") == "assistant")
        calls: list[JsonObject] = rollout.get("calls") or []
        call = calls[answers] if answers < len(calls) else {}
        message = recorded[position]
        return Completion(
            message=message,
            finish_reason=call.get("finish_reason") or ("tool_calls" if message.get("tool_calls") else "stop"),
            usage=Usage(**{**(call.get("usage") or {}), "cost_usd": 0.0}),
            model=call.get("model") or rollout.get("model"),
            cached=True,
        )

    async def close(self) -> None:
        self._lines.close()

    def _refusal(self, message: str) -> ModelError:
        hint = "replay answers only recorded requests; run without --replay to call a model"
        return ModelError(f"cannot replay: {message}", category=Category.BAD_REQUEST.value, hint=hint)


def find_parting(before: Sequence[Message], after: Sequence[Message]) -> int | None:
    for i, (was, now) in enumerate(zip(before, after, strict=False)):
        if any((was.get(name) or None) != (now.get(name) or None) for name in _COMPARED[:3]):
            return i
    return None if len(before) == len(after) else min(len(before), len(after))


def _index(path: Path) -> dict[tuple[int, int], int]:
    offsets: dict[tuple[int, int], int] = {}
    try:
        with path.open("rb") as lines:
            offset = 0
            for line in lines:
                try:
                    head = orjson.loads(line)
                    offsets[(head["row_index"], head["attempt"])] = offset
                except (orjson.JSONDecodeError, KeyError, TypeError):
                    pass  # an incomplete line is not a recording
                offset += len(line)
    except OSError as error:
        message = f"cannot read the journal to replay, {path}: {error.strerror}"
        raise NotFound(message, hint="give the name of a run") from error
    return offsets
