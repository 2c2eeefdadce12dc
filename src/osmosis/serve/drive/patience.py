"""How long one rollout on a rollout server may take: its agent's limit and the limit of everything, neither of which
counts time that a model call spent waiting for a rate limit. Only this side knows of such waits, so the agent's limit
is kept here; the server is given more, as a backstop for when nobody is here any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from osmosis.engine.clock import Waits

Passed = Literal["agent", "whole"]


class Patience:
    """The two limits of one rollout, in seconds; `agent_s` None = the agent has none of its own."""

    def __init__(self, agent_s: float | None, whole_s: float) -> None:
        self.waits = Waits()
        self._agent_s = agent_s
        now = asyncio.get_running_loop().time()
        self._whole_ends = now + whole_s
        self._agent_ends = None if agent_s is None else now + agent_s

    def wait(self, seconds: float) -> None:
        """A wait for a rate limit begins."""
        fresh = self.waits.add(seconds)
        self._whole_ends += fresh
        if self._agent_ends is not None:
            self._agent_ends += fresh

    def begin(self) -> None:
        """The agent starts now; what came before was the server's queue."""
        if self._agent_ends is not None and self._agent_s is not None:
            self._agent_ends = asyncio.get_running_loop().time() + self._agent_s

    def end(self) -> None:
        """The agent is done; what follows has limits of its own."""
        self._agent_ends = None

    async def over(self, run: asyncio.Task[Any], agent_runs: Callable[[], Awaitable[bool | None]]) -> Passed | None:
        """Waits for `run`; which limit passed before it was done, None when it was.

        `agent_runs` is asked when the agent's limit passes: False = it is done, None = it has not begun.
        """
        loop = asyncio.get_running_loop()
        while True:
            ends = self._whole_ends if self._agent_ends is None else min(self._whole_ends, self._agent_ends)
            done, _ = await asyncio.wait([run], timeout=max(0.0, ends - loop.time()))
            if done:
                return None
            now = loop.time()
            if now >= self._whole_ends:
                return "whole"
            if self._agent_ends is not None and now >= self._agent_ends:
                runs = await agent_runs()
                if run.done():
                    return None
                if self._agent_ends is None or loop.time() < self._agent_ends:
                    continue  # told meanwhile that it began, or ended, or waits
                if runs:
                    return "agent"
                self.end() if runs is False else self.begin()
