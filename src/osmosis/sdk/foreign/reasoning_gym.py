"""`reasoning-gym:NAME?size=50&seed=1`: procedural tasks, one answer each; other options are the generator's."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import orjson
import reasoning_gym

from osmosis.base.jsonable import JsonObject
from osmosis.errors import LoadError
from osmosis.records.run.rollout import Message
from osmosis.sdk.backend import LocalBackend
from osmosis.sdk.chat import text_of
from osmosis.sdk.foreign import ForeignEnvironment
from osmosis.sdk.score_functions import score_function
from osmosis.sdk.types import AgentWorkflowConfig
from osmosis.sdk.workflow import AgentWorkflow, AgentWorkflowContext, Grader, GraderContext

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class AnswerOnce(AgentWorkflow[object]):
    async def run(self, ctx: AgentWorkflowContext[object]) -> list[Message]:
        async with ctx.chat() as chat:
            return [*ctx.prompt, (await chat.complete(ctx.prompt)).message]


@score_function(min=0, max=1)
class ReasoningGrader(Grader[object]):
    async def grade(self, ctx: GraderContext) -> None:
        assert ctx.sample is not None
        ctx.set_reward(score_answer(text_of(ctx.sample.messages[-1]), ctx.metadata["entry"]))


def score_answer(answer: str, entry: JsonObject) -> float:
    """Return the score, 0 to 1, that its task gives an answer, or the text of the answer's last `<answer>` tag."""
    tagged = _ANSWER.findall(answer)
    score = reasoning_gym.get_score_answer_fn(entry["metadata"]["source_dataset"])
    return float(score(answer=(tagged[-1] if tagged else answer).strip(), entry=entry))


def open_environment(name: str, options: JsonObject, base_dir: Path) -> ForeignEnvironment:
    options = {**{"size": 100, "seed": 0}, **options}
    try:
        tasks = reasoning_gym.create_dataset(name, **options)
    except (AssertionError, TypeError, ValueError) as error:
        hint = "reasoning-gym:NAME?size=50&seed=1; names as its gallery lists them, other options are the generator's"
        raise LoadError(f"reasoning-gym makes no tasks of {name!r}: {error}", hint=hint) from error
    backend = LocalBackend(AnswerOnce, AgentWorkflowConfig(name=name), ReasoningGrader)
    return ForeignEnvironment(backend, lambda: _make_rows(f"{name}-{options['seed']}", tasks))


def _make_rows(stem: str, tasks: Iterable[JsonObject]) -> Iterator[JsonObject]:
    for number, entry in enumerate(tasks):
        row = {"id": f"{stem}-{number}", "user_prompt": entry["question"], "ground_truth": entry["answer"]}
        yield {**row, "metadata": {"entry": orjson.loads(orjson.dumps(entry, default=str))}}
