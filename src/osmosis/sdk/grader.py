"""The judge of generation 0.3: subclass `Grader`, write `grade`, leave a finite reward on the sample.

A grader that raises, or that leaves no reward, is a failure of the score phase and never a zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeAlias, TypeVar

from .context import GraderContext

TConfig = TypeVar("TConfig")


class Grader(ABC, Generic[TConfig]):
    """Base class of a grader. `config` is the object given to the backend, or None."""

    def __init__(self, config: TConfig | None = None) -> None:
        self.config = config

    @abstractmethod
    async def grade(self, ctx: GraderContext) -> None:
        """Judges `ctx.sample` against `ctx.label`: calls `ctx.set_reward(x)`, or sets `ctx.sample.remove_sample`."""


GraderClass: TypeAlias = type[Grader[Any]]
"""A grader, whatever config it takes."""
