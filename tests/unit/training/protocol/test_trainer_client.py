"""The protocol between job and trainer, over a real socket, against the fake trainer, which is the real server."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from osmosis.errors import ModelError, ValidationError
from osmosis.records.run.rollout import Category
from osmosis.records.run.training import read_manifest
from osmosis.testing.scripted import call, says
from osmosis.training.protocol.client import TrainerClient
from osmosis.training.protocol.messages import (
    Batch,
    Checkpointed,
    Collect,
    Done,
    Event,
    Failed,
    SampledAnswer,
    SampleDelta,
    SampleRequest,
    Sequence,
    StepMetrics,
)
from osmosis.training.protocol.plans import TrainerPlan
from support.fake_trainer import END, FakeTrainer, digits, encode
from support.trainer_drive import sample_whole


def plan(folder: Path, **changes: Any) -> TrainerPlan:
    values: dict[str, Any] = {
        "run": "tiny", "model_path": "fake", "output_dir": str(folder / "out"), "rows": [0, 1, 2, 3],
        "validation_rows": [8], "steps": 3, "rows_per_step": 2, "samples_per_row": 2,
        "eval_interval": 2, "save_interval": 2,        "max_prompt_length": 200, "max_response_length": 20, "lr": 1e-3,
    }  # fmt: skip
    return TrainerPlan(**{**values, **changes})


def ask(request_id: str, text: str = "1+1", **more: Any) -> SampleRequest:
    return SampleRequest(id=request_id, messages=[{"role": "user", "content": text}], **more)


async def rollouts(trainer: TrainerClient, collect: Collect, reward: float | None = 1.0) -> Batch:
    """One answer per rollout."""
    found = []
    for row in collect.rows:
        for attempt in range(collect.samples_per_row):
            sample = await sample_whole(trainer, ask(f"{collect.step}/{row}/{attempt}"))
            ids = sample.prompt_ids + sample.token_ids
            found.append(
                Sequence(
                    row=row,
                    attempt=attempt,
                    token_ids=ids,
                    prompt_length=len(sample.prompt_ids),
                    mask=[1] * len(sample.token_ids),
                    logprobs=sample.logprobs,
                    reward=reward,
                )
            )
    return Batch(step=collect.step, kind=collect.kind, sequences=found)


async def drive(trainer: TrainerClient, *, stop_at: int | None = None) -> AsyncIterator[Event]:
    """Does what a job does until the last event."""
    async for one in trainer.events():
        event = one.event
        yield event
        if isinstance(event, Collect):
            if event.step == stop_at:
                await trainer.stop()
            else:
                await trainer.send_batch(await rollouts(trainer, event))
        if isinstance(event, (Done, Failed)):
            return


async def test_a_run_from_the_first_collect_to_the_end(tmp_path: Path) -> None:
    with FakeTrainer(plan(tmp_path), tmp_path / "s") as fake:
        async with TrainerClient(tmp_path / "s") as trainer:
            events = [event async for event in drive(trainer)]
            health = await trainer.health()
    told = [(event.type, event.step) for event in events]
    assert told == [
        ("collect", 0), ("metrics", 0),
        ("collect", 1), ("metrics", 1),
        ("collect", 2), ("metrics", 2), ("collect", 2), ("metrics", 2), ("checkpoint", 2),
        ("collect", 3), ("metrics", 3), ("collect", 3), ("metrics", 3), ("checkpoint", 3),
        ("done", 3),
    ]  # fmt: skip
    assert next(event.values for event in events if isinstance(event, StepMetrics)) == {"eval/validation/reward": 1.0}
    saved = [event for event in events if isinstance(event, Checkpointed)]
    assert [read_manifest(Path(one.path)).kind for one in saved] == ["regular", "final"]
    assert len(fake.batches) == 6
    assert (health.state, health.step, health.requests_done) == ("done", 3, 15)


async def test_events_come_again_until_they_are_dealt_with(tmp_path: Path) -> None:
    with FakeTrainer(plan(tmp_path), tmp_path / "s"):
        for _ in range(2):  # a job that was killed asks again from where it was
            async with TrainerClient(tmp_path / "s") as trainer:
                first = await anext(aiter(trainer.events()))
                assert (first.number, first.event.type) == (1, "collect")


async def test_stop_saves_a_checkpoint_and_a_resumed_run_goes_on_after_it(tmp_path: Path) -> None:
    with FakeTrainer(plan(tmp_path), tmp_path / "s"):
        async with TrainerClient(tmp_path / "s") as trainer:
            events = [event async for event in drive(trainer, stop_at=2)]
    saved = next(event for event in events if isinstance(event, Checkpointed))
    assert (saved.kind, saved.step) == ("stop", 1)
    assert isinstance(events[-1], Done)
    assert events[-1].stopped
    with FakeTrainer(plan(tmp_path, resume_from=saved.path), tmp_path / "s"):
        async with TrainerClient(tmp_path / "s") as trainer:
            events = [event async for event in drive(trainer)]
    assert [event.step for event in events if isinstance(event, Collect)] == [2, 2, 3, 3]


async def test_a_partial_checkpoint_is_a_failed_event(tmp_path: Path) -> None:
    (tmp_path / "half").mkdir()
    with FakeTrainer(plan(tmp_path, resume_from=str(tmp_path / "half")), tmp_path / "s"):
        async with TrainerClient(tmp_path / "s") as trainer:
            events = [event async for event in drive(trainer)]
    assert isinstance(events[0], Failed)
    assert "not a complete checkpoint" in events[0].message


async def test_a_sample_is_whole_and_streams(tmp_path: Path) -> None:
    with FakeTrainer(plan(tmp_path), tmp_path / "s"):
        async with TrainerClient(tmp_path / "s") as trainer:
            whole = await sample_whole(trainer, ask("a"))
            parts = [part async for part in trainer.stream(ask("a", stream=True))]
    assert whole.prompt_ids == encode(f"<user>1+1{END}<assistant>")
    assert len(whole.token_ids) == len(whole.logprobs) == 3
    assert (whole.content, whole.finish_reason) == (digits(ask("a"), 0), "stop")
    assert "".join(part.content for part in parts if isinstance(part, SampleDelta)) == whole.content
    assert parts[-1] == whole


async def test_tool_calls_of_the_policy_are_those_of_the_message(tmp_path: Path) -> None:
    answer = says(None, call("add", '{"a": 1}'))
    with FakeTrainer(plan(tmp_path, max_response_length=90), tmp_path / "s", policy=lambda *_: answer):
        async with TrainerClient(tmp_path / "s") as trainer:
            sample = await sample_whole(trainer, ask("a"))
    assert sample.finish_reason == "tool_calls"
    assert sample.message == answer


async def test_a_prompt_that_is_too_long_is_an_error_and_the_next_one_is_answered(tmp_path: Path) -> None:
    with FakeTrainer(plan(tmp_path), tmp_path / "s"):
        async with TrainerClient(tmp_path / "s") as trainer:
            with pytest.raises(ModelError, match="200 are allowed") as caught:
                await sample_whole(trainer, ask("a", "x" * 500))
            assert caught.value.category == Category.CONTEXT_LENGTH.value
            assert (await sample_whole(trainer, ask("b"))).finish_reason == "stop"


async def test_a_batch_that_does_not_fit_is_refused_and_the_right_one_still_taken(tmp_path: Path) -> None:
    with FakeTrainer(plan(tmp_path, validation_rows=[]), tmp_path / "s"):
        async with TrainerClient(tmp_path / "s") as trainer:
            events = aiter(trainer.events())
            collect = (await anext(events)).event
            assert isinstance(collect, Collect)
            good = await rollouts(trainer, collect)
            with pytest.raises(ValidationError, match="no collect is open for train of step 7"):
                await trainer.send_batch(replace(good, step=7))
            with pytest.raises(ValidationError, match="comes twice"):
                await trainer.send_batch(replace(good, sequences=good.sequences[:1] * 2))
            stray = replace(good.sequences[0], attempt=2)
            with pytest.raises(ValidationError, match="was not asked for"):
                await trainer.send_batch(replace(good, sequences=[stray]))
            await trainer.send_batch(good)
            await trainer.send_batch(good)  # whose first answer may have been lost
            assert (await anext(events)).event.type == "metrics"
            assert (await anext(events)).event.type == "collect"
            await trainer.stop()
            await trainer.send_batch(replace(good, step=2))


async def test_a_policy_that_breaks_is_an_error_of_its_request(tmp_path: Path) -> None:
    def policy(request: SampleRequest, updates: int) -> str:
        if request.id == "bad":
            raise RuntimeError("odd")
        return "fine"

    with FakeTrainer(plan(tmp_path), tmp_path / "s", policy=policy):
        async with TrainerClient(tmp_path / "s") as trainer:
            answers = await asyncio.gather(*(sample_whole(trainer, ask(f"r{n}")) for n in range(40)))
            assert all(isinstance(one, SampledAnswer) for one in answers)
            with pytest.raises(ModelError, match="RuntimeError: odd"):
                await sample_whole(trainer, ask("bad"))


async def test_only_this_user_reaches_the_socket_and_a_gone_trainer_is_a_connection_error(tmp_path: Path) -> None:
    with FakeTrainer(plan(tmp_path), tmp_path / "s"):
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
    async with TrainerClient(tmp_path / "s") as trainer:
        with pytest.raises(ModelError) as caught:
            await trainer.health()
    assert caught.value.category == Category.CONNECTION.value
