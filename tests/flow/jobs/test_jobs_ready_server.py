"""A rollout server that stands ready: started before its job is known, used where it is what the job needs, and to the
rollout the same as one that is started for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from osmosis.base.processes import start_token
from osmosis.jobs.ready_server import READY_S, LastServer, ReadyServer
from osmosis.records.run import JobEntry
from osmosis.records.run_status import RunStatus
from osmosis.testing.job_api import job_api

from .conftest import DEADLINE_S, PYPROJECT, Desk, with_before

pytestmark = [pytest.mark.flow, pytest.mark.usefixtures("isolated")]

STOOD_READY = "start: its process stood ready"
MODULE = "osmosis.jobs.ready_process"
LOOK = """
import calendar, json, pathlib, pickle, sys
seen = {"main": sys.modules["__main__"].__file__, "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(),
        "input": os.read(0, 1).decode(), "environ": dict(os.environ), "orig_argv": sys.orig_argv[1:],
        "hash": hash("a word"), "calendar": getattr(calendar, "MINE", "the library"),
        "pickled": pickle.dumps(type(self)).hex(), "stdin": sys.stdin.fileno()}
seen["environ"] = {k: v for k, v in seen["environ"].items() if "PORT" not in k and "INSTANCE" not in k}
pathlib.Path(os.environ["_OSMOSIS_ROLLOUT_ARTIFACT_ROOT"], "seen.json").write_text(json.dumps(seen))
"""
AGENT = with_before(*LOOK.strip().splitlines()).replace("await before(ctx)", "await before(self, ctx)")
AGENT = AGENT.replace("async def before(ctx)", "async def before(self, ctx)")


@asynccontextmanager
async def waiting(desk: Desk) -> AsyncIterator[tuple[asyncio.subprocess.Process, psutil.Process]]:
    """A job's process as an executor starts it ahead, and its rollout server that stands ready."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "osmosis.jobs", "--wait", str(desk.cache),
        env=desk.environ, stdin=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        await until(lambda: stopped_below(process.pid) is not None)
        stood = stopped_below(process.pid)
        assert stood is not None
        yield process, stood
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def stopped_below(pid: int) -> psutil.Process | None:
    """The process that stands ready, once it is stopped."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            if MODULE in child.cmdline() and child.status() == psutil.STATUS_STOPPED:
                return child
    return None


async def until(done: Callable[[], bool]) -> None:
    for _ in range(int(READY_S * 50)):
        if done():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come to that")


async def give(desk: Desk, process: asyncio.subprocess.Process, folder: Path) -> None:
    """Gives it the job, and waits for its end."""
    desk.api.secrets = desk.secrets
    folder.mkdir(parents=True)
    (folder / "job.log").touch()
    entry = JobEntry(lease=desk.api.token, work_dir=str(folder), cache_dir=str(desk.cache))
    assert process.stdin is not None
    process.stdin.write(f"{desk.api.url}/api/jobs/{desk.api.run_id}\n".encode() + entry.model_dump_json().encode())
    process.stdin.close()
    assert await asyncio.wait_for(process.wait(), DEADLINE_S) == 0, (folder / "job.log").read_text()
    assert desk.result.status is RunStatus.FINISHED, desk.log


async def run(desk: Desk, commit: str) -> None:
    """A job that is started for its run."""
    desk.rows = 1
    assert await desk.run(desk.write(commit)) == 0
    assert desk.result.status is RunStatus.FINISHED, desk.log
    assert STOOD_READY not in desk.log


@asynccontextmanager
async def another(desk: Desk) -> AsyncIterator[Desk]:
    """Another run of the same rollout on the same machine."""
    async with job_api(run_id="run_2", token=desk.api.token) as api:
        yield Desk(desk.folder, desk.cache, api, desk.environ, 1, dict(desk.config), {}, desk.secrets)


def seen(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "artifacts" / "seen.json").read_text())
    return found


async def both_ways(desk: Desk, commit: str) -> tuple[dict[str, object], dict[str, object]]:
    """What a rollout sees in a server that is started for it, and in one that stood ready."""
    async with another(desk) as again:
        await run(desk, commit)
        async with waiting(desk) as (process, stood):
            again.write(commit)
            await give(again, process, desk.folder / "second")
            assert not stood.is_running()
        assert STOOD_READY in again.log
    return seen(desk.folder / "work"), seen(desk.folder / "second")


async def test_a_rollout_sees_no_difference(desk: Desk) -> None:
    desk.secrets = {"SEARCH_KEY": "value-of-the-search-key"}
    desk.config = {"secrets": {"required": ["SEARCH_KEY"]}, "env": {"MINE": "1", "PYTHONHASHSEED": "0"}}
    started, ready = await both_ways(desk, desk.commit(main=AGENT))
    assert ready == started
    assert ready["cwd"] == "/rollout/source/rollouts/multiply"


async def test_without_a_reason_no_second_process_is_started(desk: Desk) -> None:
    """The one before has a variable that Python reads at its start: this one is what stood ready itself."""
    started, ready = await both_ways(desk, desk.commit(main=AGENT))
    for each in (started, ready):
        del each["hash"]  # random in each process
    assert ready == started


async def test_a_file_of_the_rollout_wins_over_what_is_loaded(desk: Desk) -> None:
    desk.config = {"env": {"PYTHONHASHSEED": "0"}}
    mine = "MINE = 'of the rollout'\ndef timegm(when): raise NotImplementedError\n"
    started, ready = await both_ways(desk, desk.commit(main=AGENT, calendar=mine))
    assert ready["calendar"] == started["calendar"] == "of the rollout"


async def test_what_the_objects_of_a_file_are_served_by_is_the_same(desk: Desk) -> None:
    """No server of its own: `python -m osmosis.jobs.host main.py`."""
    text = AGENT.partition("from osmosis.sdk.backend import LocalBackend")[0]
    started, ready = await both_ways(desk, desk.commit(main=text))
    for each in (started, ready):
        del each["hash"]
    assert ready == started


async def test_an_error_of_the_script_is_said_with_its_own_lines(desk: Desk) -> None:
    async with another(desk) as again:
        await run(desk, desk.commit(main=AGENT))
        async with waiting(desk) as (process, _):
            (desk.folder / "hub.git").rename(desk.folder / "old.git")
            again.write(
                desk.commit(main="def fails():\n    raise LookupError('no luck')\n\n\nif __name__:\n    fails()\n")
            )
            folder = desk.folder / "second"
            with pytest.raises(AssertionError):
                await give(again, process, folder)
    assert again.result.status is RunStatus.FAILED
    assert "no luck" in str(again.result.failure)
    assert "ready_process" not in again.log


FORKS = (
    f"import os, sys; {MODULE!r} in sys.orig_argv and os.fork() == 0 "
    "and os.execv('/bin/sh', ['/bin/sh', '-c', 'while :; do :; done', 'goes-on'])"
)


async def test_what_an_environment_starts_beside_it_stands_still_too(desk: Desk) -> None:
    async with another(desk) as again:
        commit = desk.commit(main=AGENT)
        await run(desk, commit)
        last = LastServer.of(desk.cache)
        assert last is not None
        site = next(Path(last.environment).glob("lib/python3*/site-packages"))
        (site / "forks.pth").write_text(FORKS + "\n")
        try:
            async with waiting(desk) as (process, stood):
                beside = [one for one in psutil.process_iter(["cmdline"]) if "goes-on" in (one.info["cmdline"] or ())]
                assert beside
                used = [sum(one.cpu_times()[:2]) for one in beside]
                await asyncio.sleep(0.5)
                assert [sum(one.cpu_times()[:2]) for one in beside] == used
                again.write(commit)
                await give(again, process, desk.folder / "second")
                assert not any(one.is_running() for one in [stood, *beside])
        finally:
            (site / "forks.pth").unlink()
    assert STOOD_READY in again.log


async def test_one_of_another_environment_is_not_used(desk: Desk) -> None:
    async with another(desk) as again:
        await run(desk, desk.commit(main=AGENT))
        async with waiting(desk) as (process, stood):
            (desk.folder / "hub.git").rename(desk.folder / "old.git")
            again.write(desk.commit(main=AGENT, pyproject=PYPROJECT.replace("iniconfig>=2", "iniconfig>=1")))
            await give(again, process, desk.folder / "second")
        assert STOOD_READY not in again.log
        assert not stood.is_running()


async def test_one_in_another_sandbox_is_not_used(desk: Desk) -> None:
    async with another(desk) as again:
        commit = desk.commit(main=AGENT)
        await run(desk, commit)
        again.config = {"advanced": {"network": "gate"}}
        async with waiting(desk) as (process, _):
            again.write(commit)
            await give(again, process, desk.folder / "second")
        assert STOOD_READY not in again.log


async def test_one_that_died_while_it_stood_is_not_missed(desk: Desk) -> None:
    async with another(desk) as again:
        commit = desk.commit(main=AGENT)
        await run(desk, commit)
        async with waiting(desk) as (process, stood):
            stood.kill()
            await until(lambda: start_token(stood.pid) is None)
            again.write(commit)
            await give(again, process, desk.folder / "second")


@pytest.mark.parametrize("killed", [True, False])
async def test_it_ends_with_the_process_that_waits(desk: Desk, killed: bool) -> None:
    await run(desk, desk.commit(main=AGENT))
    async with waiting(desk) as (process, stood):
        if killed:
            process.send_signal(signal.SIGKILL)
        else:
            assert process.stdin is not None
            process.stdin.close()
        await process.wait()
        await until(lambda: start_token(stood.pid) is None)
    async with waiting(desk):  # what a killed one leaves is removed by the next
        assert len([folder for folder in (desk.cache / "ready-servers").iterdir() if folder.is_dir()]) == 1


async def test_nothing_stands_ready_where_nothing_is_known(tmp_path: Path) -> None:
    assert await ReadyServer.start(tmp_path, os.environ) is None
