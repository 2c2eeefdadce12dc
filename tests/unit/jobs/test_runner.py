"""The runner around work of any kind: how long a stop waits, and what becomes of each ending."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from osmosis.jobs.context import JobContext
from osmosis.jobs.runner import Exit, JobRunner
from osmosis.records.run.job import Handover, JobResult, JobSpec
from osmosis.records.run.report import Report
from osmosis.records.run.status import RunStatus
from support.job_api import FakeJobApi, job_api
from support.waiting import until

TOKEN = "lease-token"


@pytest.fixture
async def api() -> AsyncIterator[FakeJobApi]:
    async with job_api("run_1", TOKEN) as started:
        yield started


def spec(api: FakeJobApi, folder: Path) -> JobSpec:
    experiment = {"rollout": "r", "entrypoint": "main.py", "model_path": "offline/echo", "dataset": "d"}
    return JobSpec.model_validate(
        {
            "run_id": api.run_id,
            "run_name": "r-1",
            "kind": "eval",
            "platform_url": api.url,
            "repository": str(folder),
            "commit_sha": "0" * 40,
            "config": {"experiment": experiment, "secrets": {"required": []}},
            "dataset_path": str(folder / "d.jsonl"),
            "rows": [0],
            "work_dir": str(folder / "work"),
            "cache_dir": str(folder / "cache"),
        }
    )


class Work:
    """Works until it is stopped; then it finishes by itself, unless it hangs."""

    def __init__(self, context: JobContext, *, patience_s: float, hangs: bool = False) -> None:
        self.context = context
        self.patience_s = patience_s
        self.hangs = hangs

    async def run(self) -> JobResult:
        await self.context.stop.wait()
        if self.hangs:
            await asyncio.Event().wait()
        return JobResult(status=RunStatus.STOPPED, report=self.report())

    def report(self) -> Report | None:
        return None

    def stop(self) -> float:
        return self.patience_s


async def test_a_kind_that_nothing_here_can_do_is_a_clear_failure(api: FakeJobApi, tmp_path: Path) -> None:
    job = JobRunner(spec(api, tmp_path), Handover(token=TOKEN), {}, kinds={})
    assert await job.run() is Exit.REPORTED
    assert api.result is not None
    assert api.result.failure is not None
    assert api.result.status is RunStatus.FAILED
    assert api.result.failure.message == "this machine runs no jobs of kind eval"


async def test_work_that_winds_down_by_itself_gives_the_result(api: FakeJobApi, tmp_path: Path) -> None:
    job = JobRunner(
        spec(api, tmp_path), Handover(token=TOKEN), {}, kinds={"eval": lambda context: Work(context, patience_s=60.0)}
    )
    api.stop = True
    assert await asyncio.wait_for(job.run(), 30.0) is Exit.REPORTED
    assert api.result is not None
    assert api.result.status is RunStatus.STOPPED
    assert api.result.failure is None


@pytest.mark.parametrize(("patience_s", "grace_s"), [(0.0, 60.0), (600.0, 0.5)])
async def test_what_does_not_end_is_cut_off_when_either_patience_is_over(
    api: FakeJobApi, tmp_path: Path, patience_s: float, grace_s: float
) -> None:
    def hanging(context: JobContext) -> Work:
        return Work(context, patience_s=patience_s, hangs=True)

    job = JobRunner(spec(api, tmp_path), Handover(token=TOKEN), {}, kinds={"eval": hanging})
    going = asyncio.create_task(job.run())
    await until(lambda: api.heartbeats)
    job.stop(grace_s)
    assert await asyncio.wait_for(going, 30.0) is Exit.REPORTED
    assert api.result is not None
    assert api.result.status is RunStatus.STOPPED


class Filling(Work):
    """Writes until the machine takes no more."""

    async def run(self) -> JobResult:
        with (Path(self.context.spec.work_dir) / "journal.jsonl").open("wb", buffering=0) as file:
            while True:
                assert file.write(b"x" * 4096)


async def test_a_full_disk_names_its_cause_on_the_run(api: FakeJobApi, tmp_path: Path) -> None:
    job = JobRunner(
        spec(api, tmp_path), Handover(token=TOKEN), {}, kinds={"eval": lambda context: Filling(context, patience_s=1.0)}
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))  # what a full disk is to a process
    try:
        assert await asyncio.wait_for(job.run(), 60.0) is Exit.REPORTED
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert api.result is not None
    assert api.result.failure is not None
    assert api.result.failure.message.startswith("the disk of the machine that runs this job is full")
    assert "bug" not in (api.result.failure.fix or "")
