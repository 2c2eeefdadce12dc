"""The sandboxes of rollouts that a server runs: made beside it, asked for at the rollout's own endpoint."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from osmosis.errors import OsmosisError, SandboxUnavailable
from osmosis.sandbox.session import SessionKind
from osmosis.sdk.sandbox import GateSandbox, Sandbox
from osmosis.serve.client.model_proxy import ModelProxy
from osmosis.serve.client.sandboxes import MOST_PER_ROLLOUT, Sandboxes
from support.waiting import until

from .support import ScriptedModel


@pytest.fixture
async def gate(tmp_path: Path) -> AsyncIterator[ModelProxy]:
    gate = ModelProxy(
        ScriptedModel(), sandboxes=Sandboxes(lambda: SessionKind(python=Path(sys.executable), parent=tmp_path))
    )
    await gate.open()
    yield gate
    await gate.close()


def sandbox_of(gate: ModelProxy, rollout_id: str) -> tuple[Sandbox, Any]:
    endpoint = gate.open_rollout(rollout_id)
    return Sandbox(lambda: GateSandbox(endpoint.chat_completions_url, endpoint.bearer)), endpoint


async def test_everything_works_over_the_door(gate: ModelProxy, tmp_path: Path) -> None:
    sandbox, endpoint = sandbox_of(gate, "one")
    done = await sandbox.run(["python", "-c", "print(input())"], stdin="hello", files={"a/b.txt": b"\x00\xff"})
    assert (done.ok, done.stdout) == (True, "hello\n")
    assert await sandbox.read_bytes("a/b.txt") == b"\x00\xff"
    assert await sandbox.list_files() == ["a/b.txt"]
    assert (await sandbox.workdir()).startswith(str(tmp_path))
    late = await sandbox.run("sleep 60", timeout_s=0.4)
    assert late.ended == "time"
    failed = await sandbox.run("echo $GIVEN; exit 4", env={"GIVEN": "yes"})
    assert (failed.exit_code, failed.stdout) == (4, "yes\n")
    async with sandbox.fresh() as other:
        assert await other.list_files() == []
    with pytest.raises(OsmosisError, match="no part of it may be"):
        await sandbox.read_file("../up")
    await sandbox.close()
    assert list(tmp_path.iterdir()) == []
    gate.close_rollout(endpoint)


async def test_a_rollout_reaches_its_own_sandboxes_only(gate: ModelProxy) -> None:
    sandbox, one = sandbox_of(gate, "one")
    await sandbox.write_file("mine.txt", "x")
    other = gate.open_rollout("other")
    named = sandbox._host._name  # type: ignore[union-attr]
    assert await Sandbox(lambda: GateSandbox(other.chat_completions_url, other.bearer, named)).list_files() == []
    with pytest.raises(SandboxUnavailable, match="status 401"):
        await Sandbox(lambda: GateSandbox(one.chat_completions_url, other.bearer, named)).list_files()


async def test_what_runs_ends_with_its_rollout(gate: ModelProxy, tmp_path: Path) -> None:
    marks = tmp_path.parent / f"{tmp_path.name}-marks"
    marks.mkdir()
    sandbox, endpoint = sandbox_of(gate, "one")
    running = asyncio.create_task(sandbox.run(f"touch {marks}/began; sleep 2; touch {marks}/went-on"))
    await until((marks / "began").exists, what="the command")
    gate.close_rollout(endpoint)
    assert (await running).ended == "caller"
    await until(lambda: not list(tmp_path.iterdir()), what="the removal")
    await asyncio.sleep(2.5)
    assert not (marks / "went-on").exists()
    with pytest.raises(SandboxUnavailable, match="no sandbox is offered"):
        await sandbox.run("true")


async def test_whoever_hangs_up_ends_the_command(gate: ModelProxy, tmp_path: Path) -> None:
    marks = tmp_path.parent / f"{tmp_path.name}-marks"
    marks.mkdir()
    sandbox, _ = sandbox_of(gate, "one")
    running = asyncio.create_task(sandbox.run(f"touch {marks}/began; sleep 2; touch {marks}/went-on"))
    await until((marks / "began").exists, what="the command")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.sleep(3)
    assert not (marks / "went-on").exists()


async def test_a_rollout_has_a_few_at_most(gate: ModelProxy) -> None:
    _, endpoint = sandbox_of(gate, "one")
    doors = [
        Sandbox(lambda: GateSandbox(endpoint.chat_completions_url, endpoint.bearer))
        for _ in range(MOST_PER_ROLLOUT + 1)
    ]
    for door in doors[:-1]:
        await door.list_files()
    with pytest.raises(OsmosisError, match=f"at most {MOST_PER_ROLLOUT}"):
        await doors[-1].list_files()
    await doors[0].close()
    assert await doors[-1].list_files() == []


async def test_a_machine_without_one_says_why(tmp_path: Path) -> None:
    def lacking() -> SessionKind:
        raise SandboxUnavailable("no sandbox works on this machine: it is too old", hint="buy another")

    gate = ModelProxy(ScriptedModel(), sandboxes=Sandboxes(lacking))
    await gate.open()
    try:
        sandbox, _ = sandbox_of(gate, "one")
        with pytest.raises(SandboxUnavailable, match="it is too old") as found:
            await sandbox.run("true")
        assert found.value.hint == "buy another"
    finally:
        await gate.close()


async def test_an_endpoint_without_any_says_so() -> None:
    gate = ModelProxy(ScriptedModel())
    await gate.open()
    try:
        sandbox, _ = sandbox_of(gate, "one")
        with pytest.raises(SandboxUnavailable, match="no sandbox is offered"):
            await sandbox.run("true")
    finally:
        await gate.close()
