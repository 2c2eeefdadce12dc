"""What judges consume, added up per block of code, so that whoever scores can tell a judge's tokens from the agent's.

Apart from `judge`, because every score function runs in such a block and few ask a judge.
"""

from __future__ import annotations

from contextvars import ContextVar, Token

from osmosis.records.rollout import Usage

_NOTHING: Usage = Usage.made()
"""Replaced, never changed."""


class JudgeUsage:
    """What the judges inside a `collect_judge_usage` block consumed."""

    __slots__ = ("calls", "usage")

    def __init__(self) -> None:
        self.usage = _NOTHING
        self.calls = 0


judge_usage: ContextVar[JudgeUsage | None] = ContextVar("osmosis_judge_usage", default=None)
"""What the block that runs now adds to."""


class collect_judge_usage:
    """Adds up what every judge called inside the block consumed, on this task and in threads it starts."""

    __slots__ = ("_token",)

    def __enter__(self) -> JudgeUsage:
        collected = JudgeUsage()
        self._token: Token[JudgeUsage | None] = judge_usage.set(collected)
        return collected

    def __exit__(self, *_: object) -> None:
        judge_usage.reset(self._token)


def count_usage(usage: Usage) -> None:
    """Adds to the block this runs in, when there is one."""
    collected = judge_usage.get()
    if collected is not None:
        collected.usage = collected.usage + usage
        collected.calls += 1
