"""The processes of one run; sharing uses gloo on the CPU: waiting must not occupy the GPU that samples."""

import os
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import fully_shard

from osmosis.training.trainer.errors import TrainingFailed
from osmosis.training.trainer.service import Stopped

Value = TypeVar("Value")
_LONGEST = timedelta(days=7)


def shard_frozen(adapted: Any, device: torch.device) -> None:
    """Divide the frozen weights between the processes, which gather them layer by layer; adapters stay whole."""
    learning = {weight for weight in adapted.parameters() if weight.requires_grad}
    for weight in learning:
        weight.data = weight.data.to(device)
    module = adapted.get_base_model()
    names = set(module._no_split_modules or ())
    for layer in [layer for layer in module.modules() if type(layer).__name__ in names]:
        fully_shard(layer, ignored_params=learning)
    fully_shard(module, ignored_params=learning)


class Ranks:
    def __init__(self) -> None:
        self.number = int(os.environ.get("RANK", "0"))
        self.local = int(os.environ.get("LOCAL_RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self._gloo: dist.ProcessGroup | None = None

    def check(self, expected: int) -> None:
        """Join the other processes. Raise `TrainingFailed` when there are not as many as expected."""
        if self.world != expected:
            message = f"{expected} data-parallel processes were asked for, and {self.world} started"
            raise TrainingFailed(message, kind="engine")
        if self.world > 1 and not dist.is_initialized():
            if torch.cuda.is_available():
                torch.cuda.set_device(self.local)
            dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
            self._gloo = dist.new_group(backend="gloo", timeout=_LONGEST)

    def share(self, build: Callable[[], Value]) -> Value:
        """Return what rank 0 builds, on every rank; an error or a stop there is one everywhere."""
        if self.world == 1:
            return build()
        box: list[object] = [None, None]
        if self.number == 0:
            try:
                box[0] = build()
            except BaseException as error:  # raised again, on every rank
                box[1] = error if isinstance(error, (Stopped, TrainingFailed)) else Stopped()
                dist.broadcast_object_list(box, src=0, group=self._gloo)
                raise
        dist.broadcast_object_list(box, src=0, group=self._gloo)
        if box[1] is not None:
            raise cast(BaseException, box[1])
        return cast(Value, box[0])

    def gather(self, value: Value) -> list[Value]:
        if self.world == 1:
            return [value]
        values: list[object] = [None] * self.world
        dist.all_gather_object(values, value, group=self._gloo)
        return cast(list[Value], values)

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors if self.world > 1 else ():
            dist.all_reduce(tensor)
