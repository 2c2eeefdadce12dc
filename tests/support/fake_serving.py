"""A model that is served without one: `python tests/support/run.py fake_serving PLAN SOCKET` speaks the real protocol.

It answers with its name, its adapter's folder and what it was asked last, letter by letter when it streams. Told so in
the question it misbehaves: `die` ends the process, `slow` takes its time for every letter, `read FILE` says what is in
a file.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

from osmosis.jobs.models import ServingProgram
from osmosis.jobs.trainer.environment import TrainerEnvironment
from osmosis.training.protocol.messages import Failed, SampledAnswer, SampleDelta, SampleRequest
from osmosis.training.protocol.plans import ServingPlan
from osmosis.training.trainer.service import TrainerService

from . import TESTS

LETTER_S = 0.05


def program() -> ServingProgram:
    """This module, in the environment that runs now."""
    made = TrainerEnvironment(
        Path(sys.prefix), TESTS.parent, {"torch": "none"}, "{}.{}.{}".format(*sys.version_info[:3])
    )
    return ServingProgram(made, "tests.support.fake_serving")


class EchoSampler:
    """Says what it was asked."""

    def __init__(self, plan: ServingPlan) -> None:
        self._plan = plan

    async def stream(self, request: SampleRequest) -> AsyncGenerator[SampleDelta | SampledAnswer, None]:
        asked = str(request.messages[-1].get("content"))
        if asked == "die":
            os._exit(9)
        if asked.startswith("read "):
            asked = _read(Path(asked.removeprefix("read ")))
        adapter = Path(self._plan.adapter_path).name if self._plan.adapter_path else "base"
        text = f"{self._plan.name} ({adapter}): {asked}"
        if request.stream:
            for letter in text:
                yield SampleDelta(content=letter)
                await asyncio.sleep(LETTER_S if asked.startswith("slow") else 0)
        elif asked.startswith("slow"):
            await asyncio.sleep(LETTER_S * len(text))
        ids = [ord(letter) for letter in text]
        yield SampledAnswer(
            prompt_ids=[1], token_ids=ids, logprobs=[-0.5] * len(ids), content=text, finish_reason="stop",
            parse="content",
        )  # fmt: skip


def _read(path: Path) -> str:
    """What this process can read of a file."""
    try:
        return path.read_text()
    except OSError as error:
        return type(error).__name__


def main(arguments: list[str]) -> int:
    """Until it is ended."""
    plan = ServingPlan.model_validate_json(Path(arguments[0]).read_bytes())
    with TrainerService(plan.name, Path(arguments[1])) as service:
        if plan.name == "osmosis/dies":
            return 9
        if plan.name == "osmosis/broken":
            service.finish(Failed(category="memory", message="it does not fit", fix="choose a smaller one"))
            return 1
        service.sampler = EchoSampler(plan)
        service.health.state = "ready"
        service.stop_requested.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
