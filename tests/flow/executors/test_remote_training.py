"""A training run on workers that share no disk with the platform: the first is lost, the second goes on from what the
first had stored there. The trainer has no model here; everything else is real."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from osmosis.records.run.training import read_manifest
from osmosis.training.step_journal import StepJournal
from support.training_platform import JOB, QUIET, TrainingPlatform, kill, training_platform, without_a_model
from support.waiting import until

from .remote_worker import RemoteWorker, remote_worker

pytestmark = [pytest.mark.network, pytest.mark.slow]
STEPS, ROLLOUTS, VALIDATIONS = 4, 16, 3 * 2
"""Of `without_a_model`."""


@pytest.fixture
def place(trainer_cache: Path, tmp_path: Path) -> Iterator[TrainingPlatform]:
    with training_platform(tmp_path / "home", trainer_cache, no_worker="", lease="8") as made:
        without_a_model(made)
        yield made


def steps_of(worker: RemoteWorker, place: TrainingPlatform, name: str) -> Path:
    return worker.folder / "jobs" / "runs" / str(place.row(name)["id"]) / "steps"


@pytest.mark.soak  # two minutes
async def test_a_lost_machine_costs_the_steps_after_its_last_checkpoint(
    place: TrainingPlatform, tmp_path: Path
) -> None:
    config = f'job_command = "{JOB}"\n'
    with ExitStack() as workers:
        one = workers.enter_context(remote_worker(place.process, tmp_path / "one", config, {**os.environ, **QUIET}))
        name = place.submit()
        step = StepJournal(steps_of(one, place, name), "train", 3)
        await until(lambda: step.exists and len(step.finished()) >= 4, within=240, what="a part of step 3")
        await until(lambda: len(place.stored(name)) > 2 * ROLLOUTS + 4, within=60, what="which is stored")
        lost = {rollout.key: rollout.rollout_id for rollout in step.rollouts()}
        processes = place.processes(name)
        one.kill()
        kill(*processes)
        two = workers.enter_context(remote_worker(place.process, tmp_path / "two", config, {**os.environ, **QUIET}))
        assert await place.until_over(name, within=240) == "finished", place.log(name)
        second = StepJournal(steps_of(two, place, name), "train", 3)
        assert not StepJournal(steps_of(two, place, name), "train", 2).exists, "the first machine did it"
    log = place.log(name)
    assert "starting the trainer from the checkpoint of step 2" in log
    assert "it goes on from step 2 on another machine" in log
    stored = place.stored(name)
    assert len(stored) == STEPS * ROLLOUTS + VALIDATIONS
    learned = {rollout.key: rollout.rollout_id for rollout in second.rollouts()}
    assert {key: stored[key] for key in learned} == learned, "what is shown is what was learned from"
    assert not set(lost.values()) & set(stored.values())
    assert list(place.curve(name, "rollout/raw_reward")) == [1, 2, 3, 4]
    assert list(place.curve(name, "eval/validation/reward")) == [0, 2, 4]
    assert [row["checkpoint_step"] for row in place.ok("train", "checkpoints", name)["items"]] == [2, 4]
    data = place.process.data_dir
    folders = sorted((data / "models" / "runs" / str(place.row(name)["id"])).iterdir())
    assert [read_manifest(folder).step for folder in folders] == [2, 4]
    assert not (place.work_dir(name) / "steps").exists(), "no job has worked on the platform's disk"
    place.ok("model", "download", f"{name}-step-4", "--output", str(tmp_path / "got"), "--yes")
    assert (tmp_path / "got" / "adapter_model.safetensors").read_bytes() == (4).to_bytes(8, "little")
