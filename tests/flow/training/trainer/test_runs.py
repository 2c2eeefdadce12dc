"""Whole runs of the real trainer process: learning, stopping, being killed, resuming, and saying what is wrong."""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import uv

from osmosis.jobs.trainer.environment import TrainerEnvironment
from osmosis.records.run.training import read_manifest
from osmosis.training.protocol.messages import Checkpointed, Collect, Done, Event, Example, Failed, StepMetrics
from osmosis.training.protocol.plans import TrainerPlan
from support.tiny_task import TOOL, conversation, problem
from support.trainer_drive import adding, follow, replay

pytestmark = [pytest.mark.network, pytest.mark.slow]
Plan = Callable[..., TrainerPlan]


def curve(events: list[Event], key: str) -> list[float]:
    return [event.values[key] for event in events if isinstance(event, StepMetrics) and key in event.values]


async def test_grpo_raises_the_reward(plan: Plan, start: Any) -> None:
    made = plan(rows=list(range(64)), rows_per_step=16, samples_per_row=8, steps=6, save_interval=4, keep=1)
    async with start(made) as (link, process):
        events = []
        async for event in follow(link, adding(link)):
            events.append(event)
            if isinstance(event, Checkpointed):  # at the end the trainer is gone
                health = await link.health()
    rewards = curve(events, "rollout/raw_reward")
    error = 2 * (0.25 / 128) ** 0.5  # of the difference of two means over 128 rollouts each, at most
    assert statistics.fmean(rewards[-2:]) - statistics.fmean(rewards[:2]) > 2 * error, rewards
    assert events[-1] == Done(step=6)
    assert process.returncode == 0
    assert (health.model.trainable_parameters, health.model.tool_calls) == (116736, "template")
    saved = [event for event in events if isinstance(event, Checkpointed)]
    assert [(one.step, one.kind) for one in saved] == [(4, "regular"), (6, "final")]
    names = {file.name for file in read_manifest(Path(saved[-1].path)).files}
    assert names >= {"adapter_model.safetensors", "adapter_config.json"}
    assert "optimizer.safetensors" in names
    assert not {name for name in names if name.endswith((".bin", ".pt", ".pth"))}, "no pickles"


@pytest.fixture
def bitsandbytes(trainer: TrainerEnvironment, trainer_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra `quantize`, beside the trainer's environment."""
    folder = trainer_cache / "bitsandbytes"
    if not folder.exists():
        command = [uv.find_uv_bin(), "pip", "install", "--quiet", "--python", str(trainer.python), "--no-deps"]
        done = subprocess.run([*command, "--target", str(folder), "bitsandbytes>=0.49"], capture_output=True)
        if done.returncode:
            pytest.skip("needs bitsandbytes, which cannot be installed here")
    monkeypatch.setenv("PYTHONPATH", str(folder))


@pytest.mark.soak  # 4 bits on a CPU take minutes
async def test_an_adapter_learns_on_a_base_model_in_4_bits(plan: Plan, start: Any, bitsandbytes: None) -> None:
    made = plan(
        quantize="4bit", rows=list(range(64)), rows_per_step=16, samples_per_row=8, steps=6, save_interval=3,
        num_iterations=2, kl=0.01,
    )  # fmt: skip
    async with start(made) as (link, _):
        events = []
        async for event in follow(link, adding(link)):
            events.append(event)
            if isinstance(event, Checkpointed):
                health = await link.health()
    assert events[-1] == Done(step=6)
    rewards = curve(events, "rollout/raw_reward")
    assert statistics.fmean(rewards[-2:]) - statistics.fmean(rewards[:2]) > 4 * (0.25 / 128) ** 0.5, rewards
    assert max(curve(events, "train/mismatch_mean")) < 1e-3, "answers are sampled from the same 4 bits"
    assert (health.model.parameters, health.model.trainable_parameters) == (605888, 116736)
    assert health.model.versions["bitsandbytes"]
    saved = next(event for event in events if isinstance(event, Checkpointed))
    async with start(made.model_copy(update={"resume_from": saved.path})) as (link, _):
        again = [event async for event in follow(link, adding(link))]
    assert again[-1] == Done(step=6)
    assert curve(again, "train/mismatch_mean")[0] < 1e-3


@pytest.mark.soak
async def test_a_student_moves_towards_its_teacher(plan: Plan, start: Any, checks: Any) -> None:
    found = checks("teacher")["teacher"]
    assert "is not that of the model" in found["refused"]
    made = plan(
        loss="distill", teacher_path=found["folder"], rows=list(range(64)), rows_per_step=8, steps=8, save_interval=8
    )
    async with start(made) as (link, _):
        events = [event async for event in follow(link, adding(link))]
    assert events[-1] == Done(step=8)
    divergences = curve(events, "train/teacher_kl")
    assert statistics.fmean(divergences[-2:]) < statistics.fmean(divergences[:2]) / 2, divergences


async def test_a_killed_run_that_resumes_is_the_run_that_was_not_killed(plan: Plan, start: Any, tmp_path: Path) -> None:
    changes = {"schedule": "cosine", "warmup_steps": 1}
    async with start(plan(output_dir=str(tmp_path / "whole"), **changes)) as (link, _):
        whole = [event async for event in follow(link, replay)]
    killed = plan(output_dir=str(tmp_path / "killed"), **changes)
    seen: list[Event] = []
    async with start(killed) as (link, process):
        async for event in follow(link, replay):
            seen.append(event)
            if isinstance(event, Collect) and event.step == 4:
                os.kill(process.pid, signal.SIGKILL)
                break
    (tmp_path / "killed" / ".draft-000004").mkdir(exist_ok=True)  # what a kill while saving leaves
    newest = tmp_path / "killed" / "step-000002"
    async with start(killed.model_copy(update={"resume_from": str(newest)})) as (link, _):
        rest = [event async for event in follow(link, replay)]
    assert [event.step for event in rest if isinstance(event, Collect)] == [3, 4]
    for key in ("train/lr", "train/loss", "train/grad_norm"):
        assert curve(rest, key) == pytest.approx(curve(whole, key)[2:], abs=1e-6)
    assert not list((tmp_path / "killed").glob(".draft*"))
    assert _apart(tmp_path, "whole", "killed") < 1e-6

    two = plan(output_dir=str(tmp_path / "two"), processes=2, **changes)
    async with start(two) as (link, process):
        events = [event async for event in follow(link, replay)]
    assert events[-1] == Done(step=4)
    assert curve(events, "rollout/raw_reward") == curve(whole, "rollout/raw_reward")
    assert _apart(tmp_path, "whole", "two") < 1e-3


async def test_a_launcher_that_starts_too_few_processes_is_found_out(
    plan: Plan, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which some do without a word: the run would go on with half of its rollouts."""
    monkeypatch.setenv("WORLD_SIZE", "1")  # as if that had been started by one
    async with start(plan(processes=2)) as (link, process):
        events = [event async for event in follow(link, replay)]
    assert isinstance(events[-1], Failed)
    assert events[-1].message == "2 data-parallel processes were asked for, and 1 started"
    assert process.returncode == 1


async def test_no_process_outlives_its_launcher(plan: Plan, start: Any) -> None:
    async with start(plan(processes=2)) as (link, process):
        async for event in follow(link, replay):
            if isinstance(event, Collect) and event.step == 2:
                break
        ranks = psutil.Process(process.pid).children(recursive=True)
        first = next(rank for rank in ranks if rank.environ().get("RANK") == "0")
        first.suspend()  # it cannot notice anything, and the other one waits for it
        process.kill()
        assert len(ranks) >= 2
        assert not psutil.wait_procs(ranks, timeout=30)[1]


def _apart(folder: Path, one: str, other: str) -> float:
    """The largest distance between two weights of the last adapters."""
    mine, theirs = (_weights(folder / name / "step-000004" / "adapter_model.safetensors") for name in (one, other))
    assert len(mine) == len(theirs) == 116736
    return max(abs(a - b) for a, b in zip(mine, theirs, strict=True))


def _weights(path: Path) -> array[float]:
    """Of a safetensors file: the length of its header in 8 bytes, the header, numbers."""
    data = path.read_bytes()
    return array("f", data[8 + int.from_bytes(data[:8], "little") :])


async def test_stop_saves_what_is_there_and_a_partial_checkpoint_is_refused(plan: Plan, start: Any) -> None:
    async with start(plan(save_interval=9)) as (link, process):
        events = []
        async for event in follow(link, replay):
            events.append(event)
            if isinstance(event, StepMetrics) and event.step == 1:
                await link.stop()
    saved = next(event for event in events if isinstance(event, Checkpointed))
    assert events[-1] == Done(step=saved.step, stopped=True)
    assert saved.kind == "stop"
    assert saved.step < 4
    assert process.returncode == 0
    (Path(saved.path) / "optimizer.safetensors").unlink()
    async with start(plan(resume_from=saved.path)) as (link, process):
        refused = [event async for event in follow(link, replay)]
    assert isinstance(refused[-1], Failed)
    assert "optimizer.safetensors is missing" in refused[-1].message
    assert process.returncode == 1


async def test_sft_makes_the_model_better_than_before(plan: Plan, start: Any, tmp_path: Path) -> None:
    draw = random.Random(3)
    lines = [Example(messages=conversation(*problem(draw), draw, 1.0), tools=[TOOL]) for _ in range(256)]
    lines.append(Example(messages=[{"role": "user", "content": "1" * 500}, {"role": "assistant", "content": "?"}]))
    path = tmp_path / "examples.jsonl"
    path.write_bytes(b"".join(line.to_line() for line in lines))
    made = plan(
        method="sft", examples_path=str(path), rows=[], validation_rows=list(range(1000, 1064)), steps=12,
        rows_per_step=32, eval_interval=12, save_interval=12, lr=3e-3,
    )  # fmt: skip
    async with start(made) as (link, _):
        events = [event async for event in follow(link, adding(link))]
    before, after = curve(events, "eval/validation/reward")
    assert after - before > 0.2
    losses = curve(events, "train/loss")
    assert losses[-1] < losses[0] / 2
    assert any(event.type == "notice" and "1 longer than" in event.message for event in events)
    assert next(event for event in events if isinstance(event, Checkpointed)).reward == after
