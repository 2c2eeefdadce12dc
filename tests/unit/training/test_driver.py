"""The driver against a trainer without a model: what goes to the trainer, what is stored, how a step is replayed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from osmosis.engine.rollout_model import RolloutModel
from osmosis.engine.task import Task
from osmosis.llm.model import ChatRequest
from osmosis.records.run.rollout import Category, Failure, Phase, Rollout
from osmosis.training.driver import TrainingDriver
from osmosis.training.failures import TrainingRunFailed
from osmosis.training.models import TrainedModel
from osmosis.training.protocol.client import TrainerClient
from osmosis.training.protocol.messages import Batch, Done
from osmosis.training.protocol.plans import TrainerPlan
from support.fake_trainer import END, FakeTrainer, encode
from support.training_desk import RecordingListener, TwoTurns, by_attempt, plan_of, run_of
from support.waiting import until


class Life:
    """One life of a trainer, driven to its end."""

    def __init__(
        self, folder: Path, plan: TrainerPlan, *, agent_class: type[TwoTurns] = TwoTurns, **agent: object
    ) -> None:
        self.folder, self.plan, self.agent_class, self.agent_settings = folder, plan, agent_class, agent
        self.failure_rewards: dict[Category, float] = {}
        self.listener = RecordingListener()
        self.batches: list[Batch] = []
        self.runs: list[tuple[int, int, int]] = []

    async def go(self, *, stop_when: object = None) -> Done:
        with FakeTrainer(self.plan, self.folder / "trainer.sock") as trainer:
            self.trainer = trainer
            async with TrainerClient(trainer.service._socket_path) as link:
                model = TrainedModel(link, "base", seed=7)
                self.agent = agent = self.agent_class(model, **self.agent_settings)  # type: ignore[arg-type]  # of the class of agent
                self.batches, self.runs = trainer.batches, agent.runs
                run = replace(run_of(self.folder, self.listener, self.plan), failure_rewards=self.failure_rewards)
                driver = TrainingDriver(run, link, model, agent)
                going = asyncio.create_task(driver.run())
                try:
                    if callable(stop_when):
                        await until(stop_when)
                        await driver.stop()
                    return await asyncio.wait_for(going, 20)
                finally:
                    going.cancel()
                    await asyncio.gather(going, return_exceptions=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def failing(category: Category) -> Failure:
    return Failure(phase=Phase.AGENT, category=category, message="it took too long")


async def test_a_run_hands_over_every_step_and_tells_what_happened(folder: Path) -> None:
    life = Life(folder, plan_of(folder))
    done = await life.go()
    assert (done.step, done.stopped) == (3, False)
    kinds = [(batch.kind, batch.step, len(batch.sequences)) for batch in life.batches]
    assert kinds == [
        ("validation", 0, 2),
        ("train", 1, 8),
        ("train", 2, 8),
        ("validation", 2, 2),
        ("train", 3, 8),
        ("validation", 3, 2),
    ]
    one = life.batches[1].sequences[0]
    environment = "".join(chr(t) for t, m in zip(one.token_ids[one.prompt_length :], one.mask, strict=True) if not m)
    assert environment == f"<tool>result of first{END}<assistant>"
    assert [s.reward for s in life.batches[1].sequences] == [0.0, 1.0] * 4
    listener = life.listener
    assert listener.steps == [1, 2, 3]
    assert [saved.step for saved in listener.checkpoints] == [1, 2, 3]
    assert len(listener.rollouts) == 30
    assert {rollout.step for rollout in listener.rollouts} == {0, 1, 2, 3}
    assert all("tokens" not in rollout.info for rollout in listener.rollouts)
    found = {(point.key, point.step): point.value for point in listener.metrics}
    assert found["rollout/raw_reward", 2] == 0.5
    assert found["rollout/no_signal_ratio", 2] == 0.0
    assert found["rollout/turns", 1] == 2.0
    assert ("eval/validation/reward", 0) in found
    assert ("perf/rollout_s", 1) in found


async def test_a_failed_rollout_has_no_reward_and_is_no_zero(folder: Path) -> None:
    def judge(task, answer):
        return {0: failing(Category.TIMEOUT), 1: None}.get(task.attempt, float(task.attempt))

    life = Life(folder, plan_of(folder, steps=1, validation_rows=[]), judge=judge)
    await life.go()
    rewards = [(s.attempt, s.reward) for s in life.batches[0].sequences]
    assert rewards == [(0, None), (1, None), (2, 2.0), (3, 3.0)] * 2
    found = {point.key: point.value for point in life.listener.metrics}
    assert found["rollout/raw_reward"] == 2.5
    assert found["rollout/failed_ratio"] == 0.5


async def test_steps_after_the_checkpoint_are_replayed_and_nothing_is_run_twice(folder: Path) -> None:
    first = Life(folder, plan_of(folder, save_interval=2))
    await first.go()
    resumed = plan_of(folder, save_interval=2, steps=4, resume_from=str(folder / "models" / "step-000002"))
    second = Life(folder, resumed)
    done = await second.go()
    assert done.step == 4
    assert {step for step, _, _ in second.runs} == {4}
    replayed = next(batch for batch in second.batches if (batch.kind, batch.step) == ("train", 3))
    before = next(batch for batch in first.batches if (batch.kind, batch.step) == ("train", 3))
    assert replayed == before
    assert {rollout.step for rollout in second.listener.rollouts} == {4}
    key = "rollout/raw_reward"
    assert [p.step for p in second.listener.metrics if p.key == key] == [3, 4]
    assert ("perf/rollout_s", 3) not in {(p.key, p.step) for p in second.listener.metrics}


async def test_a_stop_saves_a_checkpoint_and_a_resume_completes_the_step(folder: Path) -> None:
    gate = asyncio.Event()
    plan = plan_of(folder, validation_rows=[], save_interval=3)
    held = Life(folder, plan, gate=gate)

    def some() -> bool:
        return len(held.runs) == 8

    done = await held.go(stop_when=some)
    assert (done.stopped, done.step) == (True, 0)
    assert [saved.kind for saved in held.listener.checkpoints] == ["stop"]
    assert held.batches == []

    async def third_waits(task):
        if task.step == 2 and task.attempt == 3:
            await asyncio.Event().wait()

    class Slow(TwoTurns):
        async def run(self, task, model):
            await third_waits(task)
            return await super().run(task, model)

    second = Life(folder, plan)
    with FakeTrainer(plan, folder / "trainer.sock") as trainer:
        async with TrainerClient(folder / "trainer.sock") as link:
            model = TrainedModel(link, "base", seed=7)
            agent = Slow(model)
            driver = TrainingDriver(run_of(folder, second.listener), link, model, agent)
            going = asyncio.create_task(driver.run())
            await until(lambda: sum(r.step == 2 for r in second.listener.rollouts) == 6)
            await driver.stop()
            assert (await asyncio.wait_for(going, 10)).step == 1
    resumed = plan_of(folder, validation_rows=[], save_interval=3, resume_from=str(folder / "models" / "step-000001"))
    third = Life(folder, resumed)
    assert (await third.go()).step == 3
    assert sorted(run for run in third.runs if run[0] == 2) == [(2, row, 3) for row in sorted(_rows_of(trainer, 2))]
    assert len(third.batches[0].sequences) == 8


def _rows_of(trainer: FakeTrainer, step: int) -> list[int]:
    from osmosis.training.protocol.plans import rows_of_step

    return rows_of_step(trainer.plan.rows, trainer.plan.rows_per_step, step, trainer.plan.seed)


@pytest.mark.parametrize(
    ("judge", "said", "fix"),
    [
        (lambda task, answer: failing(Category.TIMEOUT), "none of 8 rollouts has a reward", "agent_workflow_timeout_s"),
        (lambda task, answer: None, "neither grader nor agent gave it a reward", "osmosis eval submit"),
        (lambda task, answer: 0.0, "in the first 3 steps all attempts at a row had the same reward", "grader"),
        (lambda task, answer: 1.0, "every reward is 1", "harder"),
    ],
)
async def test_a_run_that_can_learn_nothing_ends_and_says_why(folder: Path, judge, said: str, fix: str) -> None:
    with pytest.raises(TrainingRunFailed) as caught:
        await Life(folder, plan_of(folder, validation_rows=[]), judge=judge).go()
    assert said in caught.value.failure.message
    assert fix in (caught.value.failure.fix or "")


async def test_a_first_step_without_signal_is_not_the_end(folder: Path) -> None:
    def judge(task, answer):
        return 0.0 if task.step == 1 else by_attempt(task, answer)

    life = Life(folder, plan_of(folder, validation_rows=[]), judge=judge)
    assert (await life.go()).step == 3


async def test_what_the_trainer_gives_up_for_is_the_failure(folder: Path) -> None:
    plan = plan_of(folder, resume_from=str(folder / "nowhere"))
    with pytest.raises(TrainingRunFailed, match="not a complete checkpoint"):
        await Life(folder, plan).go()


async def test_a_prompt_that_is_too_long_fails_its_rollout_alone(folder: Path) -> None:
    life = Life(folder, plan_of(folder, steps=1, validation_rows=[], max_prompt_length=len(encode("<user>row 1")) + 12))
    with pytest.raises(TrainingRunFailed) as caught:
        await life.go()
    assert caught.value.failure.category is Category.CONTEXT_LENGTH
    assert "max_prompt_length" in (caught.value.failure.fix or "")


async def test_rollouts_of_the_next_step_run_beside_those_of_this_one(folder: Path) -> None:
    later = asyncio.Event()

    class Straggling(TwoTurns):
        async def run(self, task: Task, model: RolloutModel) -> Rollout:
            if task.step == 2:
                later.set()
            elif task.step == 1 and task.attempt == 0:
                await later.wait()  # it ends only when rollouts of step 2 have begun
            return await super().run(task, model)

    life = Life(folder, plan_of(folder, max_staleness=1, validation_rows=[]), agent_class=Straggling)
    assert (await life.go()).step == 3
    assert [(batch.step, len(batch.sequences)) for batch in life.batches] == [(1, 8), (2, 8), (3, 8)]
    assert life.listener.steps == [1, 2, 3]


async def test_failures_that_the_policy_causes_have_the_reward_of_the_config(folder: Path) -> None:
    def judge(task: Task, answer: str) -> Failure | float:
        category = {0: Category.CONTEXT_LENGTH, 1: Category.RATE_LIMIT}.get(task.attempt)
        return failing(category) if category else 1.0

    life = Life(folder, plan_of(folder, steps=1, validation_rows=[]), judge=judge)
    life.failure_rewards = {Category.CONTEXT_LENGTH: -1.0}
    await life.go()
    assert [(s.attempt, s.reward) for s in life.batches[0].sequences] == [(0, -1.0), (1, None), (2, 1.0), (3, 1.0)] * 2


async def test_every_sampled_token_is_accounted_for(folder: Path) -> None:
    life = Life(folder, plan_of(folder, validation_rows=[]))
    await life.go()
    found: dict[str, float] = {}
    for point in life.listener.metrics:
        found[point.key] = found.get(point.key, 0) + point.value
    in_batches = sum(sequence.sampled for batch in life.batches for sequence in batch.sequences)
    assert found["fidelity/sampled_tokens"] == in_batches > 0
    assert found["fidelity/twice"] == found["fidelity/lost"] == found["fidelity/foreign_calls"] == 0
    assert any(text.startswith(f"fidelity: {in_batches} tokens sampled") for text in life.listener.said)


class Held(TwoTurns):
    """The first group of step 1 ends only when step 2 has `others` rollouts of its own."""

    others = 4
    slow: int | None = None

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        self.slow = task.row.index if self.slow is None else self.slow
        if task.step == 1 and task.row.index == self.slow:
            await until(lambda: sum(step == 2 for step, _, _ in self.runs) >= self.others)
        return await super().run(task, model)


async def test_a_step_begins_without_the_slowest_group_which_counts_for_the_next(folder: Path) -> None:
    plan = plan_of(folder, validation_rows=[], oversample=1.5, rows=list(range(8)))
    life = Life(folder, plan, agent_class=Held)
    assert (await life.go()).step == 3
    slow = life.agent.slow
    began = {step: {row for number, row, _ in life.runs if number == step} for step in (1, 2, 3)}
    assert [len(rows) for rows in began.values()] == [3, 2, 1], "nothing is run that no step needs"
    trained = [batch.rows for batch in life.batches]
    assert set(trained[0]) == began[1] - {slow}
    assert slow in trained[1]
    assert sorted(row for rows in trained for row in rows) == sorted(row for rows in began.values() for row in rows)
    assert [len(batch.sequences) for batch in life.batches] == [8, 8, 8]
    found = {(point.key, point.step): point.value for point in life.listener.metrics}
    assert (found["rollout/carried_groups", 1], found["rollout/carried_groups", 2]) == (0, 1)
    assert [found["rollout/waiting_groups", step] for step in (1, 2, 3)] == [1, 1, 0]
    assert (found["rollout/staleness", 1], found["rollout/staleness", 2]) == (0, 0.5)
    assert found["rollout/carried_length_ratio", 2] > 0

    resumed = plan.model_copy(update={"resume_from": str(folder / "models" / "step-000001")})
    again = Life(folder, resumed)
    assert (await again.go()).step == 3
    assert again.runs == [], "all of it is on the disk"
    assert again.batches == life.batches[1:]


async def test_a_stop_keeps_what_a_carried_group_has_and_a_resume_completes_it(folder: Path) -> None:
    plan = plan_of(folder, validation_rows=[], oversample=1.5, rows=list(range(8)))

    class Endless(Held):
        others = 99

    life = Life(folder, plan, agent_class=Endless)
    done = await life.go(stop_when=lambda: sum(rollout.step == 2 for rollout in life.listener.rollouts) == 8)
    assert (done.stopped, done.step) == (True, 1)
    slow = life.agent.slow
    resumed = plan.model_copy(update={"resume_from": str(folder / "models" / "step-000001")})
    again = Life(folder, resumed)
    assert (await again.go()).step == 3
    owed = [run for run in again.runs if run[0] < 3]
    assert sorted(owed) == [(1, slow, attempt) for attempt in range(4)]
    assert slow in again.batches[0].rows
    began = {(step, row) for step, row, _ in (*life.listener.keys(), *again.listener.keys())}
    assert sum(len(batch.rows) for batch in (life.batches[0], *again.batches)) == len(began)


def even_rows(task: Task, answer: str) -> float:
    """Only even rows have a signal."""
    return float(task.attempt % 2) if task.row.index % 2 == 0 else 0.0


class Backwards(TwoTurns):
    """The rollouts of a step that began together end the other way round."""

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        rollout = await super().run(task, model)
        await asyncio.sleep(0.05 * (4 - task.attempt) * task.row.index / 8)
        return rollout


@pytest.mark.parametrize("budget", [1, 6])
async def test_groups_without_signal_are_replaced_within_a_budget(folder: Path, budget: int) -> None:
    changes = {"validation_rows": [], "rows": list(range(12)), "steps": 2, "replace_no_signal": budget}
    life = Life(folder, plan_of(folder, **changes), judge=even_rows)
    await life.go()
    found = {(point.key, point.step): point.value for point in life.listener.metrics}
    for batch in life.batches:
        run = list(dict.fromkeys(row for step, row, _ in life.runs if step == batch.step))
        silent = [row for row in run if row % 2]
        assert found["rollout/replaced_groups", batch.step] == len(run) - 2 == min(budget, len(silent))
        assert found["rollout/replaced_rollouts", batch.step] == 4 * (len(run) - 2)
        assert batch.rows == [*(row for row in run if row % 2 == 0), *silent][:2]
        assert len(batch.sequences) == 8
    assert len(life.runs) > 16, "some are"
    other = folder / "other"
    other.mkdir()
    again = Life(other, plan_of(other, **changes), judge=even_rows, agent_class=Backwards)
    await again.go()
    assert [batch.rows for batch in again.batches] == [batch.rows for batch in life.batches]
    resumed = plan_of(folder, **changes, resume_from=str(folder / "models" / "step-000001"))
    rest = Life(folder, resumed, judge=even_rows)
    await rest.go()
    assert (rest.runs, rest.batches) == ([], life.batches[1:])


async def test_what_still_runs_when_the_rest_has_long_ended_is_cut_off(folder: Path) -> None:
    class Stuck(TwoTurns):
        async def run(self, task: Task, model: RolloutModel) -> Rollout:
            if (task.attempt, task.row.index) == (3, self.runs[0][1] if self.runs else task.row.index):
                await self.model.complete(ChatRequest(list(task.row.messages()), None, {}, task.rollout_id))
                await asyncio.Event().wait()
            return await super().run(task, model)

    life = Life(folder, plan_of(folder, steps=1, validation_rows=[], straggler_timeout_s=0.2), agent_class=Stuck)
    life.failure_rewards = {Category.TIMEOUT: -1.0}
    await life.go()
    (failed,) = [rollout for rollout in life.listener.rollouts if rollout.failure]
    assert failed.failure is not None
    assert failed.failure.category is Category.TIMEOUT
    assert "straggler_timeout_s" in str(failed.failure.fix)
    (cut,) = [s for s in life.batches[0].sequences if s.reward == -1.0]
    assert (cut.row, cut.attempt, cut.sampled) == (failed.row_index, 3, 3), "with what it has sampled"
    assert life.listener.alarms == ["step 1: 1 rollouts are cut off, 0.2 s after nine in ten had ended"]
    assert {point.key: point.value for point in life.listener.metrics}["rollout/cut_off"] == 1


async def test_a_group_that_ran_ahead_is_used_by_the_same_step_again(folder: Path) -> None:
    """Step 2 takes a group of step 3, whose other group is completed when step 3 comes."""
    plan = plan_of(
        folder, validation_rows=[], oversample=1.5, max_staleness=1, rows=list(range(12)), save_interval=9, steps=4
    )

    class Uneven(TwoTurns):
        async def run(self, task: Task, model: RolloutModel) -> Rollout:
            before = [row for step, row, _ in self.runs if step == task.step]
            if task.row.index not in list(dict.fromkeys([*before, task.row.index]))[: 2 if task.step == 2 else 1]:
                self.runs.append((task.step, task.row.index, task.attempt))
                await asyncio.Event().wait()
            return await super().run(task, model)

    life = Life(folder, plan, agent_class=Uneven)
    await life.go(stop_when=lambda: len(life.batches) == 2)
    assert {rollout.step for rollout in life.listener.rollouts} >= {1, 2, 3}
    again = Life(folder, plan)
    assert (await again.go()).step == 4
    assert again.batches[:2] == life.batches
    keys = [*life.listener.keys(), *again.listener.keys()]
    assert len(set(keys)) == len(keys) == sum(len(batch.sequences) for batch in again.batches)
