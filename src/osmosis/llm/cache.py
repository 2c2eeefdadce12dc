"""Answers from disk: by request, attempt and how often this rollout asked the same before, or those of a journal."""

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

import orjson

from osmosis.base.files import write_bytes
from osmosis.base.jsonable import JsonObject
from osmosis.errors import ModelError, NotFound
from osmosis.llm.model import ChatRequest, Completion, Model
from osmosis.records.run.plan import TOOL_RESULT, Branch, ModelSpec
from osmosis.records.run.rollout import Category, Message, Rollout, Usage, is_result

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
        return recorded_completion(recorded[position], call, rollout.get("model"))

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


def recorded_completion(message: Message, call: JsonObject, model: str | None) -> Completion:
    return Completion(
        message=message,
        finish_reason=call.get("finish_reason") or ("tool_calls" if message.get("tool_calls") else "stop"),
        usage=Usage(**{**(call.get("usage") or {}), "cost_usd": 0.0}),
        model=call.get("model") or model,
        cached=True,
    )


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


class BranchModel:
    """Gives the recorded answers of the steps before a branch, then asks `inner`, as for calls that are no step."""

    def __init__(self, inner: Model, branch: Branch, recorded: Rollout) -> None:
        self.spec, self.inner = inner.spec, inner
        self._branch, self._recorded = branch, recorded
        self._answers, self._calls = recorded.answers, recorded.own_calls
        self._counts: Counter[str] = Counter()
        self._differences: dict[str, list[int]] = {}

    async def complete(self, request: ChatRequest) -> Completion:
        if request.purpose:
            return await self.inner.complete(request)
        self._counts[request.rollout_id] += 1
        step = self._counts[request.rollout_id]
        if step <= self._branch.step:
            self._compare(request, step)
        request.messages = self._change(request.messages)
        if step >= self._branch.step:
            return await self.inner.complete(request)
        message = deepcopy(self._recorded.messages[self._answers[step - 1]])
        return recorded_completion(message, self._calls[step - 1].to_dict(), self._recorded.model)

    async def close(self) -> None:
        await self.inner.close()

    def finish(self, rollout_id: str, rollout: Rollout) -> None:
        """Write into the rollout where it differs from the recording before the step, and the changed tool result."""
        steps, differences = self._counts.pop(rollout_id, 0), self._differences.pop(rollout_id, [])
        if steps < self._branch.step:
            differences.append(steps + 1)  # the agent ended before it
        rollout.messages = self._change(rollout.messages)
        rollout.info["branch"] = {"step": self._branch.step, "differs": differences}

    def _compare(self, request: ChatRequest, step: int) -> None:
        """Compare what came since the last answer, and only tool results where a text was changed."""
        last = max((i for i, message in enumerate(request.messages) if message.get("role") == "assistant"), default=-1)
        then = self._recorded.messages[self._answers[step - 2] + 1 if step > 1 else 0 : self._answers[step - 1]]
        sides = [
            [m for m in side if not self._branch.texts or is_result(m)] for side in (request.messages[last + 1 :], then)
        ]
        if [m.get("content") or None for m in sides[0]] != [m.get("content") or None for m in sides[1]]:
            self._differences.setdefault(request.rollout_id, []).append(step)

    def _change(self, messages: list[Message]) -> list[Message]:
        text, position = self._branch.texts.get(TOOL_RESULT), self._recorded.find_result(self._branch.step)
        if text is None or position is None:
            return messages
        call = self._recorded.messages[position].get("tool_call_id")
        is_changed = [m.get("tool_call_id") == call if call else i == position for i, m in enumerate(messages)]
        return [{**m, "content": text} if now else m for m, now in zip(messages, is_changed, strict=True)]
