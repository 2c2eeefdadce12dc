"""A platform that takes no results for a while: rollouts wait for it, within bounds; none is lost or sent twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

from osmosis.engine.evaluate import Evaluation
from osmosis.engine.journal import Journal
from osmosis.engine.rollout_model import RolloutModel
from osmosis.engine.task import Task
from osmosis.jobs.reporter import Reporter
from osmosis.records.run.job import JobResult, MetricPoint
from osmosis.records.run.plan import EvalPlan, ModelSpec
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Rollout, RolloutStatus
from osmosis.records.run.rows import Row
from osmosis.records.run.status import RunStatus
from osmosis.training.driver import TrainingDriver
from osmosis.training.models import TrainedModel
from osmosis.training.protocol.client import TrainerClient
from osmosis.training.protocol.messages import Done
from support.fake_trainer import FakeTrainer
from support.job_api import FakeJobApi, job_api
from support.training_desk import RecordingListener, TwoTurns, plan_of, run_of
from support.waiting import until

ROWS, LANES = 60, 4
LARGE = "x" * 100_000
HELD = 5 * len(LARGE)
AT_MOST = 5 + 1 + 2 * LANES
"""What fits, what goes over it, what was on its way to the journal then, and what had begun."""


class ReportedRun:
    """Rollouts of 100 kB, reported as a job does."""

    def __init__(self, reporter: Reporter, folder: Path) -> None:
        self.reporter, self.stop = reporter, asyncio.Event()
        self.made = self.told = 0
        self.journal = Journal(folder)

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        self.made += 1
        await until(lambda: self.made - self.told <= LANES)  # as with a model that takes its time
        message = {"role": "assistant", "content": LARGE}
        return Rollout(
            rollout_id=task.rollout_id,
            row_index=task.row.index,
            attempt=task.attempt,
            status=RolloutStatus.SUCCESS,
            messages=[message],
        )

    async def go(self) -> Report:
        plan = EvalPlan(
            name="t", agent="a", model=ModelSpec.parse("offline/x"), dataset="d", concurrency=LANES, adaptive=False
        )
        rows = [Row(index=index, data={"user_prompt": str(index)}) for index in range(ROWS)]
        return await Evaluation(
            plan,
            rows,
            self,
            journal=self.journal,
            observer=self,
            stop=self.stop,
            selected=ROWS,
            wait_for_room=lambda: self.reporter.wait_for_room(self.stop),
        ).run()

    # The engine's observer.
    def started(self, total: int, done: int) -> None: ...

    def rollout(self, rollout: Rollout, running: Report | None) -> None:
        self.told += 1
        self.reporter.rollout(self.journal.line(rollout))

    def stage(self, text: str) -> None: ...

    def finished(self, report: Report) -> None: ...


def reporter(api: FakeJobApi) -> Reporter:
    return Reporter(api.url, api.run_id, api.token, patience_s=60, batch_wait_s=0.02, held_bytes=HELD)


async def test_no_rollout_is_started_while_too_many_wait_and_all_arrive_once(tmp_path: Path) -> None:
    async with job_api() as api, reporter(api) as speaking:
        api.down = True
        evaluation = ReportedRun(speaking, tmp_path / "j")
        running = asyncio.create_task(evaluation.go())
        await until(lambda: speaking.full)
        asked = api.requests
        await until(lambda: api.requests > asked + 1)  # it keeps asking, and nothing else goes on
        assert LANES < evaluation.made <= AT_MOST
        api.down = False
        report = await running
        await speaking.finish(JobResult(status=RunStatus.FINISHED))
        assert (report.completed, evaluation.made) == (ROWS, ROWS)
        assert sorted(api.received) == [(row, 0) for row in range(ROWS)]
        assert not speaking.full


async def test_a_run_that_waits_for_room_can_be_stopped(tmp_path: Path) -> None:
    async with job_api() as api, reporter(api) as speaking:
        api.down = True
        evaluation = ReportedRun(speaking, tmp_path / "j")
        running = asyncio.create_task(evaluation.go())
        await until(lambda: speaking.full)
        evaluation.stop.set()
        report = await asyncio.wait_for(running, 30)
        assert report.stopped == "stopped on request"
        assert report.completed == evaluation.made == len(evaluation.journal.finished()) <= AT_MOST


async def test_a_lease_that_is_lost_meanwhile_ends_the_waiting(tmp_path: Path) -> None:
    async with job_api() as api, reporter(api) as speaking:
        api.down = True
        evaluation = ReportedRun(speaking, tmp_path / "j")
        running = asyncio.create_task(evaluation.go())
        await until(lambda: speaking.full)
        api.lease_lost, api.down = True, False
        assert speaking.ended is not None
        await asyncio.wait_for(asyncio.shield(speaking.ended), 30)
        await asyncio.wait_for(running, 30)  # in a job, whoever hears of it ends the run
        assert api.received == []


STEPS, OF_A_STEP = 6, 8


class Training(RecordingListener):
    """Steps of eight rollouts of 100 kB, reported as a job does."""

    def __init__(self, reporter: Reporter, folder: Path) -> None:
        super().__init__()
        self.reporter, self.folder, self.never = reporter, folder, asyncio.Event()
        self.made = 0

    def on_rollout(self, line: bytes) -> None:
        self.made += 1
        found = Rollout.model_validate_json(line)
        found.messages = [{"role": "assistant", "content": LARGE}]
        self.reporter.rollout(found.to_line())

    async def wait_for_room(self) -> None:
        await self.reporter.wait_for_room(self.never)

    async def go(self) -> Done:
        plan = plan_of(self.folder, steps=STEPS, validation_rows=[])
        with FakeTrainer(plan, self.folder / "trainer.sock") as trainer:
            async with TrainerClient(trainer.service._socket_path) as link:
                model = TrainedModel(link, "base", seed=7)
                run = run_of(self.folder, self)
                return await TrainingDriver(run, link, model, TwoTurns(model)).run()


async def test_a_training_begins_no_step_while_too_many_wait_and_loses_none(tmp_path: Path) -> None:
    async with job_api() as api, reporter(api) as speaking:
        api.down = True
        training = Training(speaking, tmp_path)
        running = asyncio.create_task(training.go())
        await until(lambda: speaking.full)
        asked = api.requests
        await until(lambda: api.requests > asked + 1)  # it keeps asking, and nothing else goes on
        assert training.made == OF_A_STEP
        api.down = False
        done = await asyncio.wait_for(running, 60)
        await speaking.finish(JobResult(status=RunStatus.FINISHED))
        assert (done.step, training.made) == (STEPS, STEPS * OF_A_STEP)
        assert len(api.rollouts) == len(api.received) == STEPS * OF_A_STEP
        assert {rollout.step for rollout in api.rollouts.values()} == set(range(1, STEPS + 1))


async def test_figures_that_wait_count_too() -> None:
    async with job_api() as api, reporter(api) as speaking:
        api.down = True
        point = MetricPoint(key="train/" + "x" * 10_000, step=1, value=1.0)
        speaking.metrics([point] * (HELD // 10_000 + 1))
        assert speaking.full
        api.down = False
        await speaking.wait_for_room(asyncio.Event())
        assert not speaking.full
