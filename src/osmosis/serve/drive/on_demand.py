"""The model endpoints of rollouts that run in this process: their addresses are there from the start, the server that
answers them from the first call on. Most workflows ask through `ctx.chat()` and never call one.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from osmosis.llm.model import Model
from osmosis.records.wire_checks import check_rollout_id

from .model_endpoint import RolloutEndpoint

if TYPE_CHECKING:
    from .traingate import TrainGate

BACKLOG = 1024


class GateOnDemand:
    """`async with GateOnDemand(model) as gate`: the `Endpoints` of workflows. It listens; the kernel keeps who calls
    before the server is up."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._open: dict[str, RolloutEndpoint] = {}
        self._starting: asyncio.Task[TrainGate] | None = None
        self._gate: TrainGate | None = None

    async def __aenter__(self) -> GateOnDemand:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self._listener.setblocking(False)
        host, port = self._listener.getsockname()
        self.base_url = f"http://{host}:{port}"
        asyncio.get_running_loop().add_reader(self._listener, self._called)
        return self

    async def __aexit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        try:
            if self._starting is not None:
                await (await self._starting).stop()
        finally:
            self._listener.close()

    def open_rollout(self, rollout_id: str, *, row_index: int = 0, attempt: int = 0) -> RolloutEndpoint:
        """The endpoint of one rollout; `ValueError` for an unsafe id or one that is already open."""
        if self._gate is not None:
            return self._gate.open_rollout(rollout_id, row_index=row_index, attempt=attempt)
        check_rollout_id(rollout_id)
        if rollout_id in self._open:
            raise ValueError(f"rollout {rollout_id} is already open")
        opened = RolloutEndpoint(rollout_id, self.base_url, row_index=row_index, attempt=attempt)
        opened.know_tools(None)
        self._open[rollout_id] = opened
        return opened

    def close_rollout(self, endpoint: RolloutEndpoint) -> None:
        """Later model calls of this rollout are answered 404."""
        if self._gate is not None:
            self._gate.close_rollout(endpoint)
        else:
            self._open.pop(endpoint.rollout_id, None)
            endpoint.close()

    def _called(self) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        self._starting = asyncio.create_task(self._start())

    async def _start(self) -> TrainGate:
        from .traingate import TrainGate  # brings aiohttp, which a rollout that never calls its URL does without

        gate = self._gate = TrainGate(self._model)
        gate.base_url = self.base_url
        for opened in self._open.values():
            gate.take_over(opened)
        self._open.clear()
        await gate.start(self._listener)
        return gate
