"""The grader of generation 0.3. One that raises, or leaves no reward, fails the score phase and is never a zero."""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeAlias, TypeVar

from osmosis.sdk.context import GraderContext

TConfig = TypeVar("TConfig")


class Grader(ABC, Generic[TConfig]):
    """Base class of a grader. `config` is the object given to the backend, or None."""

    def __init__(self, config: TConfig | None = None) -> None:
        self.config = config

    @abstractmethod
    async def grade(self, ctx: GraderContext) -> None:
        """Judge `ctx.sample` against `ctx.label`: call `ctx.set_reward(x)`, or set `ctx.sample.remove_sample`."""


GraderClass: TypeAlias = type[Grader[Any]]
