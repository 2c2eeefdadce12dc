"""Several environments in one run, as a person does it: two rollouts, two datasets, the tiny model, a killed job."""

import asyncio
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

from osmosis.base.files import tomllib
from osmosis.records.config.run_config import TrainingConfig
from osmosis.records.run.training import plan_training
from osmosis.training.protocol.plans import TrainerPlan
from support.training_platform import CONFIG, TrainingPlatform, kill, training_platform
from support.waiting import until

pytestmark = [pytest.mark.network, pytest.mark.slow]
MIXED = "configs/training/mixed.toml"
MIX = '\n[[mix]]\nrollout = "plus"\nentrypoint = "main.py"\ndataset = "plus"\n'
STEPS, SIZE, SMALL = 4, 4, 30


@pytest.fixture(scope="module")
def place(tiny_base: Path, trainer_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingPlatform]:
    home, command = tmp_path_factory.mktemp("mixtures"), f"{sys.executable} -m osmosis.jobs"
    with training_platform(home, trainer_cache, job_command=command) as made:
        made.ok("model", "upload", str(tiny_base), "--name", "tiny")
        made.ok("rollout", "new", "plus", "--template", "train")
        data = made.folder / "data"
        with (data / "add.jsonl").open() as rows:
            (data / "plus.jsonl").write_text("".join(islice(rows, SMALL)))  # the same keys
        made.ok("dataset", "upload", "data/plus.jsonl")
        (made.folder / MIXED).write_text((made.folder / CONFIG).read_text() + MIX)
        made.set(
            MIXED, experiment__weight=3.0, training__rollout_batch_size=SIZE, training__n_samples_per_prompt=4,
            advanced__max_steps=STEPS, advanced__validation_rows=4, advanced__test_rows=6,
            checkpoints__checkpoint_save_freq=1, checkpoints__eval_interval=2,
        )  # fmt: skip
        yield made


@pytest.fixture(scope="module")
def run(place: TrainingPlatform) -> str:
    return asyncio.run(_killed_in_the_middle(place))


async def _killed_in_the_middle(place: TrainingPlatform) -> str:
    sent = place.ok("train", "submit", MIXED, "--yes", "--wait-sync")["resource"]
    name: str = sent["name"]
    first, second = sent["check"]["environments"]
    assert (first["name"], first["share"], second["name"], second["share"]) == ("add", 0.75, "plus", 0.25)
    assert (second["rows"], second["validation_rows"], second["test_rows"]) == (SMALL - 10, 4, 6)
    assert (sent["check"]["steps"], sent["check"]["total_rollouts"]) == (STEPS, STEPS * SIZE * 4 + 3 * 8)
    step = place.journal(name, 3)
    await until(lambda: step.exists and len(step.finished()) >= 4, within=300, what="a part of step 3")
    kill(*place.processes(name))
    assert await place.until_over(name) == "finished", place.log(name)
    return name


def test_rows_come_by_weight_and_a_killed_job_draws_the_same(place: TrainingPlatform, run: str) -> None:
    config = TrainingConfig.model_validate(tomllib.loads((place.folder / MIXED).read_text()))
    total = sum(1 for _ in (place.folder / "data" / "add.jsonl").open())
    expected = plan_training(config, range(total + SMALL), sizes=[total, SMALL])
    (file,) = place.work_dir(run).rglob("trainer-plan.json")
    plan = TrainerPlan.model_validate_json(file.read_bytes())
    assert plan.rows == expected.rows
    for step in range(1, STEPS + 1):
        rollouts = list(place.journal(run, step).rollouts())
        assert {rollout.row_index for rollout in rollouts} == set(plan.rows_of(step))
        assert Counter(str(rollout.row_key).partition("/")[0] for rollout in rollouts) == {"add": 12, "plus": 4}
        assert {key for number, key, _ in place.stored(run) if number == step} >= {r.row_key for r in rollouts}
    assert "75% add, 25% plus" in place.log(run)


async def test_each_environment_has_curves_and_the_best_checkpoint_is_by_all(place: TrainingPlatform, run: str) -> None:
    for name in ("add", "plus"):
        assert list(place.curve(run, f"rollout/raw_reward/{name}")) == [1, 2, 3, 4]
    overall = place.curve(run, "eval/validation/reward")
    parts = [place.curve(run, f"eval/validation/reward/{name}") for name in ("add", "plus")]
    assert overall == {step: pytest.approx(0.75 * parts[0][step] + 0.25 * parts[1][step]) for step in (0, 2, 4)}
    listed = place.ok("train", "checkpoints", run)["items"]
    rewards = {row["checkpoint_step"]: row["reward"] for row in listed}
    assert {rewards[step] == pytest.approx(overall[step]) for step in (2, 4)} == {True}


async def test_the_rows_that_the_second_holds_out_can_be_evaluated(place: TrainingPlatform, run: str) -> None:
    config = "configs/eval/plus.toml"
    place.set(config, experiment__model_path=f"osmosis/{run}")
    name = place.submit("eval", config, "--held-out-of", run)
    assert await place.until_over(name, "eval") == "finished", place.log(name, "eval")
    tested = _keys(place, name)
    trained = {key.removeprefix("plus/") for _, key, _ in place.stored(run) if key.startswith("plus/")}
    assert len(tested) == 6
    assert not tested & trained


def test_what_is_missing_is_named_with_file_and_key(place: TrainingPlatform) -> None:
    config = "configs/training/wrong.toml"
    text = (place.folder / MIXED).read_text()
    (place.folder / config).write_text(text.replace('dataset = "plus"', 'dataset = "none"'))
    refused = place.run("train", "submit", config, "--yes", "--allow-dirty")
    assert refused.code == 1
    assert "mix.0.dataset" in refused.out + refused.err
    (place.folder / config).write_text(text.replace('rollout = "plus"', 'rollout = "minus"'))
    refused = place.run("check", config)
    line = text.splitlines().index('rollout = "plus"') + 1
    assert f"{config}:{line}: mix.0.rollout" in refused.out + refused.err
    (place.folder / config).unlink()


def _keys(place: TrainingPlatform, name: str) -> set[str]:
    with closing(sqlite3.connect(place.process.data_dir / "platform.db")) as database:
        query, owner = "select row_key from rollouts where run_id = ?", str(place.row(name, "eval")["id"])
        return {row[0] for row in database.execute(query, (owner,))}
