"""Who runs a training may be killed at any time. The trainer has no model here; everything else is real."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from osmosis.training.groups import FILE, StepGroups
from support.training_platform import JOB, TrainingPlatform, kill, training_platform, without_a_model
from support.waiting import until

pytestmark = [pytest.mark.network, pytest.mark.slow]
STEPS, ROLLOUTS = 4, 16
"""Of `without_a_model`."""
VICTIMS = ("platform", "worker", "worker and job")


class Worker:
    """A worker in a process of its own."""

    def __init__(self, place: TrainingPlatform) -> None:
        self._place = place
        self.start()

    def start(self) -> None:
        process = self._place.process
        command = [sys.executable, "-m", "osmosis.platform", "worker", "--data-dir", str(process.data_dir)]
        command += ["--platform-url", process.url, "--job-command", JOB]
        output = subprocess.DEVNULL
        self.process = subprocess.Popen(command, env=process.environ, stdout=output, stderr=output)


@pytest.fixture(scope="module")
def place(trainer_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingPlatform]:
    home = tmp_path_factory.mktemp("kills")
    with training_platform(home, trainer_cache, no_worker="") as made:
        without_a_model(made)
        yield made


@pytest.fixture(scope="module")
def worker(place: TrainingPlatform) -> Iterator[Worker]:
    made = Worker(place)
    yield made
    made.process.terminate()
    made.process.wait(30)


@pytest.mark.parametrize("victim", VICTIMS)
async def test_a_killed_process_costs_nothing(place: TrainingPlatform, worker: Worker, victim: str) -> None:
    name = place.submit()
    step = place.journal(name, 3)
    await until(lambda: step.exists and len(step.finished()) >= 4, within=200, what="a part of step 3")
    kill_victim(place, worker, name, victim)
    before = {rollout.key: rollout.rollout_id for rollout in step.rollouts()}
    start_victim(place, worker, victim)
    assert await place.until_over(name, within=200) == "finished", place.log(name)
    assert ("starting the trainer from the checkpoint of step 2" in place.log(name)) == (victim == "worker and job")
    stored = place.stored(name)
    assert {key: stored[key] for key in before} == before
    check_result(place, name)


def kill_victim(place: TrainingPlatform, worker: Worker, name: str, victim: str) -> None:
    platform = place.process.process
    if victim == "platform":
        kill(psutil.Process(platform.pid))
        platform.wait(10)
    else:
        kill(psutil.Process(worker.process.pid), *(place.processes(name) if victim == "worker and job" else ()))
        worker.process.wait(10)


def start_victim(place: TrainingPlatform, worker: Worker, victim: str) -> None:
    if victim == "platform":
        place.process.start()
    else:
        worker.start()


def check_result(place: TrainingPlatform, name: str) -> None:
    assert len(place.stored(name)) == STEPS * ROLLOUTS + 3 * 2
    for number in range(1, STEPS + 1):
        assert len(place.journal(name, number).source().read().splitlines()) == ROLLOUTS
    assert list(place.curve(name, "rollout/raw_reward")) == [1, 2, 3, 4]
    assert list(place.curve(name, "eval/validation/reward")) == [0, 2, 4]
    assert [row["checkpoint_step"] for row in place.ok("train", "checkpoints", name)["items"]] == [2, 4]


async def test_a_killed_run_loses_and_doubles_no_group(place: TrainingPlatform, worker: Worker) -> None:
    place.set(advanced__oversample=1.5, advanced__replace_no_signal=2, advanced__curriculum=True)
    name = place.submit()
    step = place.journal(name, 3)
    await until(lambda: step.exists and len(step.finished()) >= 2, within=200, what="a part of step 3")
    kill_victim(place, worker, name, "worker and job")
    before = {rollout.key: rollout.rollout_id for rollout in step.rollouts()}
    start_victim(place, worker, "worker and job")
    assert await place.until_over(name, within=200) == "finished", place.log(name)
    stored = place.stored(name)
    assert {key: stored[key] for key in before} == before
    folders = [place.journal(name, number).folder for number in range(1, STEPS + 1)]
    steps = [StepGroups.model_validate_json((folder / FILE).read_bytes()) for folder in folders]
    assert [len(groups.trained) for groups in steps] == [4] * STEPS
    used = [group for groups in steps for group in (*groups.trained, *groups.replaced)]
    began = [(number, row) for number, groups in enumerate(steps, 1) for row in groups.rows]
    assert sorted(used) == sorted(began)
    assert len(stored) == 4 * len(began) + 3 * 2
    assert list(place.curve(name, "rollout/carried_groups")) == [1, 2, 3, 4]
