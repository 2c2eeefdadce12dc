"""A training job whose rollouts are on servers elsewhere: processes that somebody else starts and ends."""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from osmosis.jobs.sandboxes import relay
from osmosis.records.config.worker import GateAddress
from osmosis.records.run.job import JobEntry
from osmosis.records.run.status import RunStatus
from osmosis.serve.server_process import free_port
from support import RUN
from support.waiting import until

from .conftest import Desk, started_job
from .test_jobs_training import COMPLETE, MAIN, TrainingDesk, ended

KEY = "key-of-the-servers"
SERVED = (
    MAIN.replace(
        "        messages = list(ctx.prompt)\n",
        "        messages = list(ctx.prompt)\n"
        '        with open(os.environ["MARKS"], "a") as marks:\n'
        "            marks.write(f\"{os.getpid()} {os.environ.get('GIVEN')}\\n\")\n",
    )
    + "\nfrom osmosis.sdk.backend import LocalBackend\nbackend = LocalBackend(Asks, config, Judge)\n"
)


class Machine:
    """Where a rollout server runs: `osmosis serve`, on a port that stays the same."""

    def __init__(self, folder: Path, training: TrainingDesk) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder = folder
        self.environ = {
            **os.environ,
            "HOLD": str(training.hold),
            "MARKS": str(training.desk.folder / "marks"),
            "OSMOSIS_DATA_DIR": str(folder / "data"),
        }
        self.pids: list[int] = []
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        words = ["serve", "-m", "main:backend", "--host", "127.0.0.1", "--port", str(self.port)]
        more = ["--skip-register", "--api-key", KEY, "--max-concurrent", "4"]
        self.folder.mkdir(exist_ok=True)
        (self.folder / "main.py").write_text(SERVED)
        with (self.folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "osmosis", *words, *more,
                cwd=self.folder, env=self.environ, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.pids.append(self._process.pid)

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            os.kill(self._process.pid, signal.SIGKILL)
            await self._process.wait()


@pytest.fixture
async def machines(desk: Desk) -> AsyncIterator[tuple[TrainingDesk, list[Machine]]]:
    training = TrainingDesk(desk)
    made = [Machine(desk.folder / name, training) for name in ("east", "west")]
    training.config["advanced"] |= {
        "rollout_servers": [machine.url for machine in made],
        "rollout_server_key_env": "SERVER_KEY",
        "max_staleness": 0,  # so that the rollouts in flight are those of one step
    }
    training.config["secrets"] = {"required": ["SERVER_KEY", "OTHER"]}
    desk.secrets = {"SERVER_KEY": KEY, "OTHER": "not-for-servers"}
    for machine in made:
        await machine.start()
    yield training, made
    for machine in made:
        await machine.kill()
        sys.stderr.write((machine.folder / "log").read_text()[-3000:])  # shown when the test fails


@asynccontextmanager
async def advertised() -> AsyncIterator[tuple[GateAddress, Counter[str]]]:
    """An address in front of a job's own, as a proxy has it, and how often somebody came by it."""
    port, seen = free_port(), Counter[str]()

    async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen["calls"] += 1
        await relay("127.0.0.1", port, reader, writer)

    async with await asyncio.start_server(passed_on, "127.0.0.1", 0) as front:
        url = f"http://127.0.0.1:{front.sockets[0].getsockname()[1]}"
        yield GateAddress(advertise_url=url, listen=f"127.0.0.1:{port}"), seen


async def job_of(training: TrainingDesk, gate: GateAddress | None = None) -> asyncio.subprocess.Process:
    desk, folder = training.desk, training.write()
    desk.api.spec = desk.api.spec.model_copy(update={"secret_names": list(desk.secrets)})
    desk.api.secrets = desk.secrets
    entry = JobEntry(lease=desk.api.token, work_dir=str(folder), cache_dir=str(desk.cache), gate=gate)
    url = f"{desk.api.url}/api/jobs/{desk.api.run_id}"
    return await started_job(url, entry, desk.environ, program=(*RUN, "fake_training_job"))


async def test_a_server_that_is_killed_and_comes_again_costs_nothing(
    machines: tuple[TrainingDesk, list[Machine]],
) -> None:
    training, (east, west) = machines
    desk = training.desk
    training.hold_row_of(1)
    async with advertised() as (gate, seen):
        job = await job_of(training, gate)
        await until(lambda: training.done.get(1) == 4, within=90, what="half of step 1")
        begun = COMPLETE[0] + COMPLETE[1]
        await until(lambda: len((desk.folder / "marks").read_text().splitlines()) == begun, within=60, what="the rest")
        await east.kill()
        await until(lambda: f"{east.url} does not answer any more" in desk.log, within=60, what="the loss")
        await east.start()
        await until(lambda: desk.log.count(f"{east.url} answers") == 2, within=60, what="the return")
        training.hold.unlink()
        assert await ended(job) == 0
    assert desk.result.status is RunStatus.FINISHED, desk.log
    assert training.done == COMPLETE
    assert len(desk.api.received) == sum(COMPLETE.values()), "a rollout was kept twice"
    assert all(one.failure is None for one in desk.api.rollouts.values())
    marks = (desk.folder / "marks").read_text().split("\n")[:-1]
    at_work = Counter(int(mark.split()[0]) for mark in marks)
    assert set(at_work) == {*east.pids, *west.pids}, "each of the three processes did a part"
    assert 0 < len(marks) - sum(COMPLETE.values()) <= 4, "what was in flight on the killed one ran again"
    assert seen["calls"] > 0, "the rollouts call the address that is advertised"
    assert "not-for-servers" not in "\n".join(marks)
