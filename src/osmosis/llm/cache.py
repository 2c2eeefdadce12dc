"""Answers on disk, by the request, the attempt number, and how often this rollout asked the same before."""

import hashlib
from collections import OrderedDict
from pathlib import Path

import orjson

from osmosis.base.files import write_bytes
from osmosis.base.jsonable import JsonObject
from osmosis.llm.model import ChatRequest, Completion, Model
from osmosis.records.run.rollout import Usage

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
