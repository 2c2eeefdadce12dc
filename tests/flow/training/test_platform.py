"""Training as a person does it: a real platform, the tiny model, its weights really trained, and everything killed."""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import sys
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from osmosis.training.protocol.messages import Batch, Collect, Done
from osmosis.training.protocol.plans import TrainerPlan
from osmosis.training.step_journal import StepJournal
from support.trainer_drive import follow
from support.training_platform import CONFIG, TrainingPlatform, kill, training_platform
from support.waiting import until

pytestmark = [pytest.mark.network, pytest.mark.slow]
STEPS, ROLLOUTS, VALIDATION_ROWS = 6, 128, 16


@pytest.fixture(scope="module")
def place(tiny_base: Path, trainer_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingPlatform]:
    home, command = tmp_path_factory.mktemp("training"), f"{sys.executable} -m osmosis.jobs"
    with training_platform(home, trainer_cache, job_command=command) as made:
        made.ok("model", "upload", str(tiny_base), "--name", "tiny")
        made.set(
            advanced__max_steps=STEPS, advanced__validation_rows=VALIDATION_ROWS, checkpoints__checkpoint_save_freq=2
        )
        yield made


@pytest.fixture(scope="module")
def killed(place: TrainingPlatform) -> tuple[str, dict[str, str]]:
    """A run that is over, whose platform, job, trainer and rollout server were all killed in step 4; the rollouts of
    that step which were stored then."""
    return asyncio.run(_killed_in_the_middle(place))


async def _killed_in_the_middle(place: TrainingPlatform) -> tuple[str, dict[str, str]]:
    name = place.submit()
    step = place.journal(name, 4)
    await until(lambda: step.exists and len(step.finished()) >= 20, within=400, what="20 rollouts of step 4")
    platform = place.process.process
    kill(psutil.Process(platform.pid), *place.processes(name))
    platform.wait(10)
    stored = {f"{one.row_key}/{one.attempt}": one.rollout_id for one in step.rollouts()}
    place.process.start()
    assert await place.until_over(name) == "finished", place.log(name)
    return name, stored


async def test_the_reward_rises_beyond_noise(place: TrainingPlatform, killed: tuple[str, dict[str, str]]) -> None:
    rewards = place.curve(killed[0], "rollout/raw_reward")
    assert list(rewards) == list(range(1, STEPS + 1))
    error = 2 * (0.25 / ROLLOUTS) ** 0.5  # of a mean over the rollouts of a step, at most; of two steps it is smaller
    gained = statistics.fmean([rewards[STEPS - 1], rewards[STEPS]]) - statistics.fmean([rewards[1], rewards[2]])
    assert gained > 2 * error, rewards
    assert list(place.curve(killed[0], "eval/validation/reward")) == [0, STEPS]
    for key in ("train/loss", "train/lr", "train/entropy_loss", "train/grad_norm", "perf/update_s"):
        assert list(place.curve(killed[0], key)) == list(range(1, STEPS + 1)), key
    titles = {one["metric_key"]: one["title"] for one in place.ok("train", "metrics", killed[0])["data"]["metrics"]}
    assert [key for key, title in titles.items() if key == title] == [], "curves without a name for people"


async def test_a_kill_of_everything_loses_and_doubles_nothing(
    place: TrainingPlatform, killed: tuple[str, dict[str, str]]
) -> None:
    name, before = killed
    assert "starting the trainer from the checkpoint of step 2" in place.log(name)
    rows = [one for step in range(1, STEPS + 1) for one in place.journal(name, step).rollouts()]
    for step in range(1, STEPS + 1):
        lines = place.journal(name, step).source().read().splitlines()
        assert len(lines) == ROLLOUTS, f"step {step} has rollouts that were run twice"
    kept = {f"{one.row_key}/{one.attempt}": one.rollout_id for one in place.journal(name, 4).rollouts()}
    assert 20 <= len(before) <= ROLLOUTS
    assert {key: kept[key] for key in before} == before
    stored = place.stored(name)
    assert len(stored) == STEPS * ROLLOUTS + 2 * VALIDATION_ROWS
    assert {one.rollout_id for one in rows} <= set(stored.values())
    assert [row["checkpoint_step"] for row in place.ok("train", "checkpoints", name)["items"]] == [2, 4, 6]


async def test_the_weights_are_those_of_a_run_that_was_not_killed(
    place: TrainingPlatform, killed: tuple[str, dict[str, str]], start: Callable[..., Any], tmp_path: Path
) -> None:
    """The recorded rollouts, given to a trainer that goes through in one life."""
    folder = place.work_dir(killed[0])
    plan = TrainerPlan.model_validate_json((folder / "trainer" / "trainer-plan.json").read_bytes())
    assert plan.resume_from is not None
    whole = plan.model_copy(update={"resume_from": None, "output_dir": str(tmp_path / "whole"), "threads": 1})

    async def recorded(wanted: Collect) -> Batch:
        stored = StepJournal(folder / "steps", wanted.kind, wanted.step).stored()
        return Batch(step=wanted.step, kind=wanted.kind, sequences=[s for one in stored for s in one.sequences()])

    async with start(whole) as (link, _):
        events = [event async for event in follow(link, recorded)]
    assert events[-1] == Done(step=STEPS)
    mine, theirs = (_weights(Path(output) / "step-000006") for output in (plan.output_dir, whole.output_dir))
    assert len(mine) == len(theirs) == 116736
    assert max(abs(a - b) for a, b in zip(mine, theirs, strict=True)) < 1e-6


async def test_masked_is_what_the_environment_said_and_nothing_else(
    place: TrainingPlatform, killed: tuple[str, dict[str, str]], tiny_base: Path
) -> None:
    tokenizer = json.loads((tiny_base / "tokenizer.json").read_bytes())
    words = {number: word for word, number in tokenizer["model"]["vocab"].items()}
    messages = {(one.row_index, one.attempt): one.messages for one in place.journal(killed[0], STEPS).rollouts()}
    with_tool = 0
    for one in place.journal(killed[0], STEPS).stored():
        expected = ""
        for message in messages[one.row_index, one.attempt]:
            if message["role"] == "tool":
                with_tool += 1
                expected += f"\n<|im_start|>tool\n{message['content']}<|im_end|>\n<|im_start|>assistant\n"
        (part,) = one.tokens
        written = [(words[token], own) for token, own in zip(part.completion_token_ids, part.mask, strict=True)]
        masked = [
            word
            for (word, own), (last, was_own) in zip(written, [("", 0), *written], strict=False)
            # An answer that was cut off has no end of its own: the template writes it.
            if not own and not (word == "<|im_end|>" and was_own and last != word)
        ]
        assert "".join(masked) == expected
    assert with_tool > ROLLOUTS / 2


def test_the_page_draws_the_curves_and_shows_the_rollouts_of_a_step(
    place: TrainingPlatform, killed: tuple[str, dict[str, str]]
) -> None:
    from support.browser import Visit, expect, running_chromium  # skips this test alone where there is none

    url = place.process.url
    with running_chromium() as browser:
        visit = Visit(browser.new_context(), url)
        visit.log_in(place.process.token)
        page = visit.page
        page.goto(f"{url}/demo/trainings/{killed[0]}")
        for title in ("Training reward", "Validation reward"):
            curve = page.get_by_role("group", name=re.compile(f"^{title} over steps"))
            expect(curve).to_be_visible()
            assert curve.bounding_box()["height"] > 50
        page.goto(f"{page.url}/rollouts?step={STEPS}")
        expect(page.get_by_role("row").nth(1)).to_be_visible()


def test_a_probe_asks_the_base_model_before_anything_is_trained(place: TrainingPlatform) -> None:
    config = "configs/training/probed.toml"  # of its own: the other tests, in whatever order, train with the first
    (place.folder / config).write_text((place.folder / CONFIG).read_text())
    place.set(config, training__rollout_batch_size=32)
    sent = place.ok("train", "submit", config, "--yes", "--wait-sync", "--probe", "4")["resource"]
    assert place.run("train", "stop", sent["name"], "--yes").code == 0
    check = sent["check"]
    assert (check["eval_model"], check["tried_rollouts"], check["tried_groups"]) == ("osmosis/tiny", 4 * 8, 4)
    assert 0.1 < check["mean_reward"] < 0.7
    assert check["no_signal"] < 1
    assert check["rollouts_per_step"] == 32 * 8
    probed = place.process.json("GET", f"eval-runs/{check['eval_run']}")["eval_run"]
    assert probed["status"] == "finished"


async def test_a_model_that_imitates_the_passed_rollouts_of_a_run_is_better_than_before(
    place: TrainingPlatform, killed: tuple[str, dict[str, str]]
) -> None:
    config, warm = "configs/training/warm.toml", f'[advanced]\nmethod = "sft"\nfrom_run = "training/{killed[0]}"'
    (place.folder / config).write_text((place.folder / CONFIG).read_text().replace("[advanced]", warm))
    place.set(config, advanced__max_steps=8, training__lr=3e-3, training__rollout_batch_size=8)
    place.set(config, checkpoints__checkpoint_save_freq=8, training__total_epochs=20)
    name = place.submit("train", config)
    assert await place.until_over(name) == "finished", place.log(name)
    examples = (place.work_dir(name) / "examples.jsonl").read_bytes().splitlines()
    rewards = place.curve(killed[0], "rollout/raw_reward")
    passed = round(sum(rewards.values()) * ROLLOUTS) + round(
        sum(place.curve(killed[0], "eval/validation/reward").values()) * VALIDATION_ROWS
    )
    assert len(examples) == passed
    assert all(json.loads(line)["tools"] for line in examples)
    losses = place.curve(name, "train/loss")
    assert list(losses) == list(range(1, 9))
    # Of eight examples each, and which rollouts passed is another thing in each session.
    assert sum(losses[step] for step in (6, 7, 8)) / 3 < 0.75 * losses[1]
    validated = place.curve(name, "eval/validation/reward")
    assert validated[8] - validated[0] > 0.2
    assert place.row(name)["current_step"] == 8


def _weights(checkpoint: Path) -> array[float]:
    """Of a safetensors file: the length of its header in 8 bytes, the header, numbers."""
    data = (checkpoint / "adapter_model.safetensors").read_bytes()
    return array("f", data[8 + int.from_bytes(data[:8], "little") :])
