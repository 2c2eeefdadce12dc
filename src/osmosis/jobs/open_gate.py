"""The model endpoint of a training job, open where its rollout servers reach it.

On this machine that is loopback. For servers elsewhere it is the address that the worker was told (`GateAddress`); a
job whose servers could not reach it, or only in the open, says so before anything is trained.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from osmosis.base.net import is_loopback
from osmosis.errors import UsageError
from osmosis.records.gate_address import GateAddress
from osmosis.records.rollout import Category
from osmosis.serve.drive.sandboxes import Sandboxes
from osmosis.serve.drive.traingate import TrainGate
from osmosis.training.trained_model import TrainedModel

from .job import setup_failed


def check_reach(at: GateAddress, servers: Sequence[str]) -> None:
    """Raises `JobFailed` when servers at these URLs could not reach a job of this machine, or it not them."""
    far = [url for url in servers if not is_loopback(url)]
    if far and not at.advertise_url:
        raise setup_failed(
            f"the rollout server at {far[0]} cannot reach this job: its machine advertises no address",
            fix="start its worker with --advertise-url https://NAME, see docs/scaling.md",
            category=Category.BAD_REQUEST,
        )
    try:
        for url in far:
            at.refuse_plain(url)
    except UsageError as problem:
        raise setup_failed(problem.message, fix=problem.hint, category=Category.BAD_REQUEST) from problem


@asynccontextmanager
async def opened_gate(
    model: TrainedModel, at: GateAddress, *, elsewhere: bool, sandboxes: Sandboxes | None
) -> AsyncIterator[TrainGate]:
    """The gate, until the block ends. `elsewhere`: its servers are not this job's own."""
    if elsewhere:
        gate = TrainGate(
            model, host=at.host, port=at.port, advertise_url=at.advertise_url, observer=model, sandboxes=sandboxes
        )
    else:
        gate = TrainGate(model, observer=model, sandboxes=sandboxes)
    try:
        await gate.start()
    except OSError as problem:
        await gate.stop()
        raise setup_failed(
            f"the model endpoint cannot listen on {at.listen}: {problem.strerror or problem}",
            fix="another job of this machine may have that port: --gate-listen HOST:0 takes a free one for each",
            category=Category.CONNECTION,
        ) from problem
    try:
        yield gate
    finally:
        await gate.stop()
