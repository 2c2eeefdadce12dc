"""The course of a run, the same for every engine: collect, update, validate, report, save, stop. Its processes share by
gloo on the CPU: waiting must not occupy the GPU that samples."""

import contextlib
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import fully_shard

from osmosis.training.protocol.messages import Batch, Collect, Done, Kind, Sequence, StepMetrics
from osmosis.training.protocol.plans import TrainerPlan
from osmosis.training.trainer.answering import Totals
from osmosis.training.trainer.checkpoints import CheckpointStore, Kind as CheckpointKind
from osmosis.training.trainer.service import LESS_MEMORY, Sampler, Stopped, TrainerService, TrainingFailed

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


Rollouts = list[list[Sequence]]  # of each rollout, by group, its parts; none where it has no tokens


class OpenSampler(Sampler, Protocol):
    totals: Totals

    def open(self, step: int, *, keep: bool = False) -> contextlib.AbstractContextManager[None]:
        """`keep`: requests in flight at its end go on when it is opened again, with the weights of then."""
        ...


class TrainingLoop(ABC):
    """One run. Rank 0 has service, store and sampler; the other ranks follow it."""

    def __init__(
        self, plan: TrainerPlan, ranks: Ranks, service: TrainerService | None, store: CheckpointStore | None, step: int
    ) -> None:
        self.plan, self.ranks, self.service, self.store = plan, ranks, service, store
        self.step = step
        self.sampler: OpenSampler | None = None
        self._reward: float | None = None
        self._validated: dict[int, float | None] = {}
        self._newest = step  # the last step whose rollouts were asked for

    @abstractmethod
    def update(self, rollouts: Rollouts) -> dict[str, float]: ...  # move the weights by one step; return its figures

    @abstractmethod
    def publish(self) -> None: ...  # sample from the present weights from here on

    @abstractmethod
    def write(self, draft: Path) -> None: ...  # write what the run resumes from; called on rank 0 alone

    def train(self) -> Done:
        self.ranks.check(self.plan.processes)
        self.publish()
        if self.step == 0:
            self._validate()
        while self.step < self.plan.steps:
            try:
                rollouts = self.ranks.share(self._collect)
            except Stopped:
                if self.step and (self.store is None or not self.store.has(self.step)):
                    self._save("stop")
                return Done(step=self.step, stopped=True)
            began = time.monotonic()
            values = self.update(rollouts)
            if not math.isfinite(values.get("train/loss", 0.0)):
                message = f"the loss of step {self.step + 1} is not finite: training diverged"
                raise TrainingFailed(message, kind="diverged")
            self.step += 1
            self.publish()
            update_s = time.monotonic() - began
            if self.step == self.plan.steps or self.step % self.plan.eval_interval == 0:
                self._validate()
            self._report({"train/lr": self.learning_rate(self.step), "perf/update_s": update_s, **values})
            if self._save_when_due():
                return Done(step=self.step, stopped=True)
        return Done(step=self.step)

    def learning_rate(self, step: int) -> float:
        """Return the rate of a step, counted from 1: warm-up, then the schedule down to zero after the last one."""
        plan, done = self.plan, step - 1
        if done < plan.warmup_steps:
            return plan.lr * done / plan.warmup_steps
        if plan.schedule == "constant":
            return plan.lr
        share = (done - plan.warmup_steps) / max(1, plan.steps - plan.warmup_steps)
        return plan.lr * (1 - share if plan.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * share)))

    def _collect(self) -> Rollouts:
        """Return the rollouts of the next step. Raise `Stopped` when the job stops the run instead of answering."""
        plan, service, step = self.plan, self.service, self.step + 1
        if service is None or plan.method != "grpo":
            if service is not None and service.stop_requested.is_set():
                raise Stopped
            return []
        while self._newest < min(step + plan.max_staleness, plan.steps):
            self._newest += 1
            rows = plan.rows_of(self._newest)
            service.ask(Collect(step=self._newest, kind="train", rows=rows, samples_per_row=plan.samples_per_row))
        batch = self._wait(step, "train")
        self._reward = batch.mean_reward
        parts = batch.parts()
        rows = batch.rows or plan.rows_of(step)
        size = plan.samples_per_row
        firsts = [rows[:number].count(row) * size for number, row in enumerate(rows)]
        return [
            parts.get((row, first + attempt), [])
            for row, first in zip(rows, firsts, strict=True)
            for attempt in range(size)
        ]

    def _validate(self) -> None:
        """Report the mean reward of the held-out rows with the present weights; a stop leaves it out."""
        plan, service, step = self.plan, self.service, self.step
        rows = plan.validation_rows
        if service is None or not rows or step in self._validated or service.stop_requested.is_set():
            return
        service.ask(Collect(step=step, kind="validation", rows=rows, samples_per_row=plan.validation_samples))
        try:
            reward = self._validated[step] = plan.mean_reward(self._wait(step, "validation").rewards)
        except Stopped:
            return
        values = {} if reward is None else {"eval/validation/reward": reward}
        service.emit(StepMetrics(step=step, values=values))

    def _wait(self, step: int, kind: Kind) -> Batch:
        assert self.sampler is not None
        assert self.service is not None
        keep = self.plan.max_staleness > 0 or self.plan.oversample > 1
        with self.sampler.open(self.step, keep=keep):
            batch = self.service.wait(step, kind)
        memory = self.sampler.totals.out_of_memory
        if memory and all(sequence.reward is None for sequence in batch.sequences):
            raise TrainingFailed(f"out of memory while sampling: {memory}", kind="memory", hint=LESS_MEMORY)
        return batch

    def _report(self, values: dict[str, float]) -> None:
        if self.service is None:
            return
        if self.plan.method == "grpo" and self._reward is not None:
            values["rollout/raw_reward"] = self._reward
        finite = {key: value for key, value in values.items() if math.isfinite(value)}
        self.service.health.step = self.step
        self.service.emit(StepMetrics(step=self.step, values=finite))

    def _save_when_due(self) -> bool:
        service = self.service
        stop = self.ranks.share(lambda: bool(service and service.stop_requested.is_set()))
        if self.step == self.plan.steps:
            self._save("final")
            return False
        if stop or self.step % self.plan.save_interval == 0:
            self._save("stop" if stop else "regular")
        return stop

    def _save(self, kind: CheckpointKind) -> None:
        if self.store is not None and self.service is not None:
            draft = self.store.draft(self.step)
            self.write(draft)
            reward = self._validated.get(self.step) if self.plan.validation_rows else self._reward
            self.service.emit(self.store.finish(draft, self.step, kind, reward))
        self.ranks.gather(None)  # the others wait until it is saved
