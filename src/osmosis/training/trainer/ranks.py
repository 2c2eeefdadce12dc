"""The processes of one run on several GPUs: rank 0 talks to the job, the others follow what it shares.

What is shared goes over gloo, on the CPU: waiting for a step of rollouts must not occupy the GPU that samples them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from .service import Stopped
from .training_failed import TrainingFailed

Value = TypeVar("Value")
_LONGEST = timedelta(days=7)
"""A step of rollouts takes as long as it takes."""


class Ranks:
    """Of this process; one process alone needs none of it."""

    def __init__(self) -> None:
        self.number = int(os.environ.get("RANK", "0"))
        self.local = int(os.environ.get("LOCAL_RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self._group: Any = None

    @property
    def first(self) -> bool:
        return self.number == 0

    def check(self, expected: int) -> None:
        """Raises when the launcher started another number of processes than the plan has."""
        found = dist.get_world_size() if dist.is_initialized() else self.world
        if found != expected:
            what = f"{expected} data-parallel processes were asked for, and {found} started"
            raise TrainingFailed(what, kind="engine")

    def share(self, make: Callable[[], Value]) -> Value:
        """What rank 0 makes, on every rank; an error or a stop there is one everywhere."""
        if self.world == 1:
            return make()
        box: list[Any] = [None, None]
        if self.first:
            try:
                box[0] = make()
            except BaseException as error:  # raised again, on every rank
                box[1] = error if isinstance(error, (Stopped, TrainingFailed)) else Stopped()
                dist.broadcast_object_list(box, src=0, group=self._gloo())
                raise
        dist.broadcast_object_list(box, src=0, group=self._gloo())
        if box[1] is not None:
            raise box[1]
        value: Value = box[0]
        return value

    def gather(self, value: Value) -> list[Value]:
        """Every rank's value, in the order of ranks."""
        if self.world == 1:
            return [value]
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, value, group=self._gloo())
        return found

    def meet(self) -> None:
        """Until every rank is here."""
        self.gather(None)

    def _gloo(self) -> Any:
        if self._group is None:
            self._group = dist.new_group(backend="gloo", timeout=_LONGEST)
        return self._group
