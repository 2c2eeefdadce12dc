"""The reporter against a real HTTP server: order, batches, patience, the lost lease, redaction."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from osmosis.base.redact import Redactor
from osmosis.engine.journal import Journal
from osmosis.errors import LeaseLost, NetworkError
from osmosis.jobs.context import JobLog
from osmosis.jobs.reporter import SILENT_AT_MOST_S, Reporter
from osmosis.records.run.job import JobResult, LogLine, MetricPoint, Progress, Stage
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Rollout, RolloutStatus
from osmosis.records.run.status import RunStatus
from support.job_api import FakeJobApi, job_api
from support.waiting import until

DEADLINE_S = 20.0


def rollout(row: int, text: str = "4", secret: str = "") -> bytes:
    """A rollout as its journal stores it."""
    message = {"role": "assistant", "content": text}
    made = Rollout(rollout_id=f"r{row}", row_index=row, attempt=0, status=RolloutStatus.SUCCESS, messages=[message])
    return Journal(Path("unused"), redactor=Redactor([secret])).line(made)


def reporter(api: FakeJobApi, *, patience_s: float = 30.0, secrets: tuple[str, ...] = ()) -> Reporter:
    return Reporter(
        api.url, api.run_id, api.token, redactor=Redactor(secrets), patience_s=patience_s, batch_wait_s=0.02
    )


async def test_everything_arrives_in_order_and_before_the_result() -> None:
    async with job_api() as api, reporter(api) as speaking:
        for row in range(250):
            speaking.rollout(rollout(row))
            speaking.log(LogLine(message=f"row {row}"))
        speaking.metrics([MetricPoint(key="reward", step=1, value=0.5)])
        await speaking.finish(JobResult(status=RunStatus.FINISHED))
        assert api.received == [(row, 0) for row in range(250)]
        assert max(api.batches) == 100
        assert [line.message for line in api.logs] == [f"row {row}" for row in range(250)]
        assert api.metrics[0].value == 0.5
        assert api.result is not None
        assert api.raw[-1] == api.result.model_dump_json(exclude_none=True)
        assert await speaking.list_stored_keys() == {(0, f"@{row}", 0) for row in range(250)}


async def test_a_rollout_is_sent_without_asking() -> None:
    async with job_api() as api, reporter(api) as speaking:
        speaking.rollout(rollout(7))
        await until(lambda: (7, 0) in api.received)


async def test_heartbeats_carry_progress_and_bring_the_stop() -> None:
    async with job_api() as api, reporter(api) as speaking:
        reply = await speaking.heartbeat(Progress(stage=Stage.ROLLOUTS, completed=3, total=9))
        assert reply is not None
        assert not reply.stop
        assert (api.heartbeats[0].stage, api.heartbeats[0].completed) == (Stage.ROLLOUTS, 3)
        api.stop = True
        reply = await speaking.heartbeat(Progress(stage=Stage.ROLLOUTS))
        assert reply is not None
        assert reply.stop


async def test_a_platform_that_hears_many_jobs_is_spoken_to_less_often_within_bounds() -> None:
    async with job_api() as api, reporter(api) as speaking:
        api.heartbeat_reply = {"every_s": 1e6}
        await speaking.heartbeat(Progress(stage=Stage.ROLLOUTS))
        assert speaking.every_s == SILENT_AT_MOST_S
        for row in range(250):
            speaking.rollout(rollout(row))
        await until(lambda: len(api.received) == 200)  # whole batches do not wait
        api.heartbeat_reply = {"every_s": -1.0}
        await speaking.heartbeat(Progress(stage=Stage.ROLLOUTS))
        assert speaking.every_s == 0.0
        await speaking.finish(JobResult(status=RunStatus.FINISHED))
        assert (api.batches, len(api.received)) == ([100, 100, 50], 250)


async def test_a_platform_that_is_down_is_waited_for_and_nothing_is_lost_or_mixed_up() -> None:
    async with job_api() as api, reporter(api) as speaking:
        api.down = True
        for row in range(5):
            speaking.rollout(rollout(row))
        assert await speaking.heartbeat(Progress(stage=Stage.ROLLOUTS)) is None
        await until(lambda: api.requests >= 3)
        for row in range(5, 10):
            speaking.rollout(rollout(row))
        api.down = False
        await speaking.finish(JobResult(status=RunStatus.FINISHED))
        assert api.received == [(row, 0) for row in range(10)]


async def test_a_platform_process_that_is_gone_and_comes_back_on_its_port() -> None:
    async with job_api() as first:
        speaking = reporter(first)
        await speaking.__aenter__()
        port = int(first.url.rpartition(":")[2])
    try:
        speaking.rollout(rollout(1))
        assert await speaking.heartbeat(Progress(stage=Stage.ROLLOUTS)) is None
        async with job_api(port=port) as second:
            await speaking.finish(JobResult(status=RunStatus.FINISHED))
            assert second.received == [(1, 0)]
    finally:
        await speaking.__aexit__(None, None, None)


async def test_patience_has_an_end() -> None:
    async with job_api() as api, reporter(api, patience_s=0.3) as speaking:
        api.down = True
        speaking.rollout(rollout(0))
        with pytest.raises(NetworkError, match="has not answered for"):
            await speaking.finish(JobResult(status=RunStatus.FINISHED))
        assert speaking.ended is not None
        assert isinstance(speaking.ended.result(), NetworkError)


async def test_a_lost_lease_ends_all_writing() -> None:
    async with job_api() as api, reporter(api) as speaking:
        api.lease_lost = True
        speaking.rollout(rollout(0))
        assert speaking.ended is not None
        assert isinstance(await asyncio.wait_for(asyncio.shield(speaking.ended), DEADLINE_S), LeaseLost)
        refused = api.late_writes
        assert refused == 1
        speaking.rollout(rollout(1))
        speaking.log(LogLine(message="more"))
        assert await speaking.heartbeat(Progress(stage=Stage.ROLLOUTS)) is None
        with pytest.raises(LeaseLost):
            await speaking.finish(JobResult(status=RunStatus.FINISHED))
        assert api.late_writes == refused
        assert api.result is None


async def test_a_wrong_token_is_a_lost_lease() -> None:
    async with job_api() as api, Reporter(api.url, api.run_id, "other") as speaking:
        with pytest.raises(LeaseLost):
            await speaking.list_stored_keys()


async def test_a_refused_rollout_ends_the_run_but_not_its_last_word() -> None:
    async with job_api() as api, reporter(api) as speaking:
        api.refuse = 422
        speaking.rollout(rollout(0))
        assert speaking.ended is not None
        problem = await asyncio.wait_for(asyncio.shield(speaking.ended), DEADLINE_S)
        assert problem.message == "refused"
        await speaking.finish(JobResult(status=RunStatus.FAILED))
        assert api.result is not None


async def test_too_large_a_batch_is_halved() -> None:
    async with job_api() as api, reporter(api) as speaking:
        api.max_rollouts = 3
        for row in range(10):
            speaking.rollout(rollout(row))
        await speaking.flush()
        assert api.received == [(row, 0) for row in range(10)]
        assert max(api.batches) <= 3


async def test_no_secret_leaves_in_any_form_of_message() -> None:
    secret = 'sk-"quoted"\\value'
    async with job_api() as api, reporter(api, secrets=(secret,)) as speaking:
        speaking.rollout(rollout(0, f"the key is {secret}", secret))
        speaking.log(LogLine(message=f"key={secret}", details={"key": secret}))
        await speaking.heartbeat(Progress(stage=Stage.ROLLOUTS))
        await speaking.finish(JobResult(status=RunStatus.FINISHED, report=_report()))
        assert "quoted" not in api.text()
        assert api.at(0, 0).messages[0]["content"] == "the key is [redacted]"


def _report() -> Report:
    return Report(
        rows=1, attempts=1, pass_threshold=1.0, total=1, completed=1, succeeded=1, failed=0, skipped=0, coverage=1.0
    )


def test_of_a_progress_bar_the_last_state_is_written() -> None:
    lines: list[LogLine] = []
    JobLog(None, lines.append).write("trainer", "\rLoading:   0%\rLoading: 100%\r\n")
    assert [line.message for line in lines] == ["Loading: 100%"]


def test_what_processes_print_takes_no_more_than_its_share_of_the_log() -> None:
    lines: list[LogLine] = []
    log = JobLog(None, lines.append)
    log.stream_bytes = 10_000
    first, second = log.stream("uv", "debug"), log.stream("rollout-server")
    for _ in range(10_000):
        first("y")
        second("ü" * 3)
    log.write("job", "it goes on")
    written = sum(len(line.message.encode()) + 31 for line in lines)
    assert written < 10_000
    assert "the rest is dropped" in lines[-2].message
    assert lines[-1].message == "it goes on"
