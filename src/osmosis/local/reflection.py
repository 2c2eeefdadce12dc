"""The reflection model of a search, whose answers are stored, so that a search run again gets the same ones."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Coroutine
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

    run: Callable[[Coroutine[object, object, Completion]], Completion] = staticmethod(asyncio.run)

    def __init__(self, spec: ModelSpec, key: str | None, path: Path) -> None:
        self._spec = spec
        self._key = key
        self._path = path
        self.answers: list[JsonObject] = json.loads(path.read_bytes()) if path.exists() else []
        self.costs: list[float | None] = []
        """US dollars of each call; None: unknown price."""
        self.problem: OsmosisError | None = None
        self.on_answer: Callable[[], None] = lambda: None
        """Called when a new answer is stored, before it is used."""

    def __call__(self, prompt: str) -> str:
        digest, calls = hashlib.sha256(prompt.encode()).hexdigest(), len(self.costs)
        is_new = calls >= len(self.answers) or self.answers[calls]["prompt"] != digest
        if is_new:
            try:
                completion = self.run(self._ask(prompt))
            except OsmosisError as error:
                error.message = Redactor([self._key] if self._key else []).text(error.message)
                self.problem = error
                raise
            answer, cost_usd = solution_of([completion.message]), completion.usage.cost_usd
            self.answers[calls:] = [{"prompt": digest, "answer": answer, "cost_usd": cost_usd}]
            write_json(self._path, self.answers)
        self.costs.append(self.answers[calls]["cost_usd"])
        if is_new:
            self.on_answer()
        return str(self.answers[calls]["answer"])

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
