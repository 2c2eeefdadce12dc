"""The reflection model of a search, whose answers are stored, so that a search run again gets the same ones."""

import asyncio
import hashlib
import json
from pathlib import Path

from osmosis.base.files import write_json
from osmosis.base.jsonable import JsonObject
from osmosis.base.redact import Redactor
from osmosis.errors import OsmosisError
from osmosis.llm import ChatRequest, Completion, open_model
from osmosis.records.run.plan import ModelSpec
from osmosis.records.run.rollout import Rollout
from osmosis.sdk.messages import solution_of


class Reflection:
    """Called with a prompt, returns the answer; GEPA goes on after a call that failed, which is kept in `problem`."""

    def __init__(self, spec: ModelSpec, key: str | None, path: Path) -> None:
        self._spec = spec
        self._key = key
        self._path = path
        self._stored: list[JsonObject] = json.loads(path.read_bytes()) if path.exists() else []
        self.costs: list[float | None] = []
        """US dollars of each call; None: unknown price."""
        self.problem: OsmosisError | None = None

    def __call__(self, prompt: str) -> str:
        digest, calls = hashlib.sha256(prompt.encode()).hexdigest(), len(self.costs)
        entry = self._stored[calls] if calls < len(self._stored) else {}
        if entry.get("prompt") != digest:
            try:
                completion = asyncio.run(self._ask(prompt))
            except OsmosisError as error:
                error.message = Redactor([self._key] if self._key else []).text(error.message)
                self.problem = error
                raise
            answer, cost_usd = solution_of([completion.message]), completion.usage.cost_usd
            entry = {"prompt": digest, "answer": answer, "cost_usd": cost_usd}
            self._stored[calls:] = [entry]
            write_json(self._path, self._stored)
        self.costs.append(entry["cost_usd"])
        return str(entry["answer"])

    async def _ask(self, prompt: str) -> Completion:
        model = open_model(self._spec, api_key=self._key)
        try:
            return await model.complete(ChatRequest([{"role": "user", "content": prompt}]))
        finally:
            await model.close()


def describe_rollout(rollout: Rollout, truth: str | None) -> JsonObject:
    """Describe a rollout for a reflection: 2,000 characters of each message, scores and failure."""
    ends = [*rollout.messages[:4], *rollout.messages[4:][-8:]]
    lines = (f"{each.get('role')}: {each.get('content') or json.dumps(each.get('tool_calls'))}" for each in ends)
    conversation = "\n".join(line[:2000] for line in lines)
    scores = {"__all__": {"value", "reason", "parts", "failure"}}
    facts = rollout.model_dump(
        mode="json", exclude_none=True, include={"scores": scores, "failure": {"message"}, "answer_issue": True}
    )
    return {"conversation": conversation, **facts, "expected": truth or "not in the dataset"}
