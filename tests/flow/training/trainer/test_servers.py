"""Engines and samplers elsewhere: the Tinker API with its real client against a server of ours, and vLLM's API."""

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uv

from osmosis.jobs.trainer.environment import TrainerEnvironment
from osmosis.training.protocol.client import TrainerClient
from osmosis.training.protocol.messages import (
    Batch,
    Checkpointed,
    Collect,
    Done,
    Event,
    Failed,
    SampleRequest,
    Sequence,
    StepMetrics,
)
from osmosis.training.protocol.plans import TrainerPlan
from support.fake_tinker import MODEL, FakeTinker
from support.fake_vllm import FakeVllm
from support.trainer_drive import follow, sample_whole

pytestmark = [pytest.mark.network, pytest.mark.slow]
END = 2
"""The tiny tokenizer's end of a turn."""
DIGIT = {digit: 21 + 16 + digit for digit in range(10)}
"""Characters from the space on, after what stands for words; checked by `content` below."""


def answering(link: TrainerClient, right: str) -> Callable[[Collect], Any]:
    """One answer to each row; right ones are rewarded."""

    async def one(step: int, row: int, attempt: int) -> Sequence:
        messages = [{"role": "user", "content": "5+5"}]
        sample = await sample_whole(link, SampleRequest(id=f"{step}/{row}/{attempt}", messages=messages))
        return Sequence(
            row=row,
            attempt=attempt,
            token_ids=sample.prompt_ids + sample.token_ids,
            prompt_length=len(sample.prompt_ids),
            mask=[1] * len(sample.token_ids),
            logprobs=sample.logprobs,
            reward=float(sample.content == right),
        )

    async def answer(collect: Collect) -> Batch:
        every = [(row, attempt) for row in collect.rows for attempt in range(collect.samples_per_row)]
        found = await asyncio.gather(*(one(collect.step, row, attempt) for row, attempt in every))
        return Batch(step=collect.step, kind=collect.kind, sequences=list(found))

    return answer


@pytest.fixture(params=[pytest.param("0.24", marks=pytest.mark.soak), "0.25"])
def tinker_library(
    request: pytest.FixtureRequest, trainer: TrainerEnvironment, trainer_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra `tinker`, beside the trainer's environment."""
    folder = trainer_cache / f"tinker-{request.param}"
    if not folder.exists():
        command = [uv.find_uv_bin(), "pip", "install", "--quiet", "--python", str(trainer.python)]
        wanted = [
            f"tinker=={request.param}.*",
            "anyio<5",
            "distro",
            "httpx[http2]<1",
            "protobuf",
            "pyqwest",
            "zstandard",
            "sniffio",
        ]
        said = subprocess.run(
            [*command, "--target", str(folder), wanted[0], "--no-deps"], capture_output=True, text=True
        )
        if said.returncode == 0:
            said = subprocess.run([*command, "--target", str(folder), *wanted[1:]], capture_output=True, text=True)
        if said.returncode:
            pytest.skip(f"needs the tinker client, which cannot be installed here: {said.stderr[-300:]}")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")


async def test_a_tinker_server_learns_and_its_state_is_resumed(
    plan: Callable[..., TrainerPlan], start: Any, tiny_base: Path, tinker_library: None
) -> None:
    answers = [[DIGIT[1], DIGIT[0], END], [DIGIT[1], DIGIT[1], END], [DIGIT[7], END]]
    async with FakeTinker(answers) as server:
        made = plan(
            engine="tinker", engine_url=server.url, model_path=MODEL, tokenizer_path=str(tiny_base), lr=0.5,
            rows_per_step=4, samples_per_row=8, validation_rows=[9], eval_interval=4, schedule="linear", warmup_steps=1,
        )  # fmt: skip
        async with start(made) as (link, _):
            events = [event async for event in follow(link, answering(link, "10"))]
        assert events[-1] == Done(step=4)
        assert server.chances[0] > 0.6
        assert [curve(events, "train/lr")] == [[0.0, 0.5, pytest.approx(1 / 3), pytest.approx(1 / 6)]]
        assert len(curve(events, "eval/validation/reward")) == 2
        datum = server.losses[0]["data"][0]["loss_fn_inputs"]
        prompt = datum["advantages"]["data"].index(next(x for x in datum["advantages"]["data"] if x))
        assert prompt > 5
        assert all(x == 0 for x in datum["logprobs"]["data"][:prompt])
        saved = [event for event in events if isinstance(event, Checkpointed)]
        assert [one.step for one in saved] == [2, 4]

        server.requests.clear()
        async with start(made.model_copy(update={"resume_from": saved[0].path})) as (link, _):
            again = [event async for event in follow(link, answering(link, "10"))]
        assert [event.step for event in again if isinstance(event, StepMetrics) and "train/lr" in event.values] == [
            3,
            4,
        ]
        assert server.requests["load_weights"] == 1


async def test_what_a_tinker_server_cannot_do_is_refused(
    plan: Callable[..., TrainerPlan], start: Any, tiny_base: Path, tinker_library: None
) -> None:
    made = plan(
        engine="tinker", engine_url="http://127.0.0.1:9", model_path=MODEL, tokenizer_path=str(tiny_base), kl=0.1
    )
    async with start(made) as (link, _):
        events = [event async for event in follow(link, answering(link, "10"))]
    assert isinstance(events[-1], Failed)
    assert "no KL penalty" in events[-1].message


async def test_vllm_samples_with_an_adapter_of_its_own_name_for_every_step(
    plan: Callable[..., TrainerPlan], start: Any, tmp_path: Path
) -> None:
    async with FakeVllm([DIGIT[1], DIGIT[0], END]) as server:
        made = plan(
            sampler="vllm", sampler_urls=[server.url], steps=2, rows_per_step=2, samples_per_row=2, save_interval=9
        )
        async with start(made) as (link, _):
            events = [event async for event in follow(link, answering(link, "10"))]
        assert events[-1] == Done(step=2)
        assert curve(events, "rollout/raw_reward") == [1.0, 1.0]
        assert [name.rpartition("-")[2] for name in server.loaded] == ["v0", "v1", "v2"]
        assert list(server.adapters) == server.loaded[2:]
        assert [body["model"] for body in server.asked] == server.loaded[:1] * 4 + server.loaded[1:2] * 4
        assert all(body["return_token_ids"] and END in body["stop_token_ids"] for body in server.asked)


async def test_vllm_on_the_trainers_gpu_sleeps_during_updates(
    plan: Callable[..., TrainerPlan], start: Any, tmp_path: Path
) -> None:
    async with FakeVllm([DIGIT[1], DIGIT[0], END]) as server:
        made = plan(
            sampler="vllm", sampler_urls=[server.url], samplers_sleep=True, steps=2, rows_per_step=2,
            samples_per_row=2, save_interval=9, validation_rows=[20],
        )  # fmt: skip
        async with start(made) as (link, _):
            events = [event async for event in follow(link, answering(link, "10"))]
        assert events[-1] == Done(step=2)
        step = ["completions", "sleep", "wake_up", "load_lora_adapter", "unload_lora_adapter"]
        assert server.calls == ["sleep", "wake_up", "load_lora_adapter", *step, *step, "completions"]


def curve(events: list[Event], key: str) -> list[float]:
    return [event.values[key] for event in events if isinstance(event, StepMetrics) and key in event.values]
