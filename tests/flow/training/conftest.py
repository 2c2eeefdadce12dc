"""The real trainer as a process, and the checks that run where torch is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from osmosis.base.locks import locked
from osmosis.jobs.trainer.environment import TrainerEnvironment
from osmosis.training.protocol.client import TrainerClient
from osmosis.training.protocol.plans import TrainerPlan
from support.trainer_environment import trainer_environ

CHECKS = Path(__file__).parent / "trainer" / "checks.py"
Checks: TypeAlias = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def checks(
    trainer: TrainerEnvironment, tiny_base: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> Checks:
    """Runs functions of `checks.py`, once for all processes that test; their results by name."""

    def run(*names: str) -> dict[str, Any]:
        base = tmp_path_factory.getbasetemp()
        folder = (base if worker_id == "master" else base.parent) / "checks" / "-".join(names)
        results = folder / "results.json"
        with locked(folder.with_suffix(".lock")):
            if not results.exists():
                folder.mkdir(parents=True)
                command = [str(trainer.python), str(CHECKS), ",".join(names), str(tiny_base), str(folder)]
                said = subprocess.run(command, env=trainer_environ(trainer), capture_output=True, text=True)
                assert said.returncode == 0, said.stderr[-4000:]
                results.write_text(said.stdout.splitlines()[-1])
        found: dict[str, Any] = json.loads(results.read_text())
        return found

    return run


@pytest.fixture
def plan(tiny_base: Path, tmp_path: Path) -> Callable[..., TrainerPlan]:
    """A small plan over the tiny model, with changes."""

    def make(**changes: Any) -> TrainerPlan:
        values: dict[str, Any] = {
            "run": "tiny", "model_path": str(tiny_base), "output_dir": str(tmp_path / "out"), "rows": list(range(12)),
            "steps": 4, "rows_per_step": 4, "samples_per_row": 4, "max_prompt_length": 60, "max_response_length": 60,
            "lr": 2e-3, "save_interval": 2, "seed": 7, "threads": 1,
        }  # fmt: skip
        return TrainerPlan(**{**values, **changes})

    return make


Start: TypeAlias = Callable[[TrainerPlan], contextlib.AbstractAsyncContextManager[tuple[TrainerClient, Any]]]


@pytest.fixture
def start(trainer: TrainerEnvironment, tmp_path: Path) -> Start:
    """Starts a trainer process for a plan; the link to it, and the process."""

    @contextlib.asynccontextmanager
    async def started(plan: TrainerPlan) -> AsyncIterator[tuple[TrainerClient, Any]]:
        written, socket, log = tmp_path / "plan.json", tmp_path / "s", tmp_path / "trainer.log"
        written.write_text(plan.model_dump_json())
        command = [str(trainer.python), "-m", "osmosis.training.trainer", str(written), str(socket)]
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *command, env=trainer_environ(trainer), stdout=output, stderr=output
            )
        try:
            async with TrainerClient(socket) as link:
                await link.wait_up(timeout_s=60)
                yield link, process
            await asyncio.wait_for(process.wait(), 60)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            socket.unlink(missing_ok=True)
            sys.stderr.write(log.read_text()[-6000:])  # shown when the test fails

    return started
