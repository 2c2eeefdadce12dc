"""Run the rollouts that the trainer asks for; whatever was killed, the steps after the last checkpoint are the same."""

import asyncio
import time
from dataclasses import dataclass, field

from osmosis.base.files import write_json
from osmosis.base.processes import end_tasks, wait_for_first
from osmosis.engine.agent import Agent
from osmosis.errors import ModelError, ValidationError
from osmosis.training.collecting import Collector, StepRollouts, TrainingRun
from osmosis.training.failures import SILENT_STEPS, TrainerLost, nothing_scored, nothing_to_learn, trainer_failure
from osmosis.training.models import TrainedModel
from osmosis.training.protocol.client import TrainerClient
from osmosis.training.protocol.messages import Batch, Checkpointed, Collect, Done, Event, Failed, Notice, StepMetrics
from osmosis.training.step_journal import no_signal_ratio

FIDELITY = ("sampled_tokens", "unscored_tokens", "twice", "lost", "repaired", "foreign_calls")


@dataclass(eq=False, repr=False)
class TrainingDriver:
    _run: TrainingRun
    _client: TrainerClient
    _model: TrainedModel
    _agent: Agent
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _sent_at: dict[int, float] = field(default_factory=dict)
    """When the batch of each training step was sent that is not trained on yet."""
    _reported_ignored: set[str] = field(default_factory=set)
    _collecting: set[asyncio.Task[None]] = field(default_factory=set)
    _broken: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def __post_init__(self) -> None:
        self._collector = Collector(self._run, self._model, self._agent)

    async def run(self) -> Done:
        """Follow events to the last one. Raise `TrainingRunFailed`, or `TrainerLost` to have the trainer restarted."""
        following = asyncio.create_task(self._follow())
        try:
            await wait_for_first(following, self._broken)
            if self._broken.done():
                await self._broken
            return await following
        finally:
            await end_tasks(following, *self._collecting)
            await self._collector.close()

    async def _follow(self) -> Done:
        try:
            async for numbered in self._client.events():
                event = numbered.event
                if isinstance(event, (Done, Failed)):
                    await self._client.acknowledge(numbered.number)
                if isinstance(event, Done):
                    self._report_fidelity()
                    return event
                await self._handle(event)
        except ModelError as error:
            raise TrainerLost(error.message) from error
        raise TrainerLost("the trainer has no more events")

    async def stop(self) -> None:
        """Give up rollouts in flight; the step's stored ones are kept for a resume."""
        self._stopping.set()
        await self._collector.close()
        try:
            await self._client.stop()
        except ModelError as error:
            raise TrainerLost(error.message) from error

    async def _handle(self, event: Event) -> None:
        listener = self._run.listener
        if isinstance(event, Collect):
            if self._stopping.is_set():
                return
            task = asyncio.create_task(self._collect(event))
            self._collecting.add(task)
            task.add_done_callback(self._end_collect)
        elif isinstance(event, StepMetrics):
            await listener.wait_for_room()  # supervised steps have no rollouts that would wait for it
            self._report_metrics(event)
        elif isinstance(event, Checkpointed):
            listener.on_checkpoint(event)
        elif isinstance(event, Notice):
            listener.on_message(f"step {event.step}: {event.message}")
        elif isinstance(event, Failed):
            raise trainer_failure(event)

    def _end_collect(self, task: asyncio.Task[None]) -> None:
        self._collecting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._broken.done():
            self._broken.set_exception(error)

    async def _collect(self, collect: Collect) -> None:
        is_train = collect.kind == "train"
        collecting = self._collector.collect_training if is_train else self._collector.collect_validation
        running = asyncio.create_task(collecting(collect))
        interrupts = [asyncio.create_task(self._stopping.wait()), asyncio.create_task(self._model.lost.wait())]
        try:
            await wait_for_first(running, *interrupts)
            if self._model.lost.is_set() and not running.done():
                raise TrainerLost("the trainer does not answer")
            if not running.done():
                return
            step = running.result()
        finally:
            await end_tasks(running, *interrupts)
        if is_train:
            step.figures["fidelity/foreign_calls"] = float(self._model.take_foreign_calls())
        self._run.listener.on_metrics(self._run.metrics.add(collect.step, step.figures))
        self._report_rollouts(collect, step)
        rollouts = step.rollouts
        if is_train:
            if all(rollout.reward is None for rollout in rollouts):
                raise nothing_scored(collect.step, rollouts)
            ratios = [self._run.metrics.find("rollout/no_signal_ratio", step) for step in range(1, SILENT_STEPS + 1)]
            if collect.step <= SILENT_STEPS and all(ratio == 1.0 for ratio in ratios):
                raise nothing_to_learn(rollouts)
        parts = await asyncio.to_thread(lambda: [part for rollout in rollouts for part in rollout.sequences()])
        batch = Batch(collect.step, collect.kind, parts, step.rows)
        if is_train:
            self._sent_at[collect.step] = time.monotonic()
        try:
            await self._client.send_batch(batch)
        except ValidationError:
            if not self._stopping.is_set():
                raise
        except ModelError as error:
            raise TrainerLost(error.message) from error
        await self._collector.pack()

    def _report_metrics(self, event: StepMetrics) -> None:
        metrics, listener = self._run.metrics, self._run.listener
        values = {
            key: value
            for key, value in event.values.items()
            if not key.startswith(("rollout/", "eval/")) or metrics.find(key, event.step) is None
        }
        is_step = any(not key.startswith("eval/") for key in event.values)
        if is_step and "perf/update_s" in values and event.step in self._sent_at:
            sent = self._sent_at.pop(event.step)
            update_s = values["perf/update_s"]
            values["perf/wait_s"] = max(0.0, time.monotonic() - sent - update_s)
            values["perf/wait_ratio"] = values["perf/wait_s"] / max(values["perf/wait_s"] + update_s, 1e-6)
            if "train/trained_tokens" in values:
                values["perf/trained_tokens_per_s"] = values["train/trained_tokens"] / max(update_s, 1e-6)
        listener.on_metrics(metrics.add(event.step, values))
        if is_step:
            listener.on_step(event.step)
        for alarm in metrics.new_alarms():
            listener.on_alarm(alarm)

    def _report_fidelity(self) -> None:
        metrics = self._run.metrics
        totals = {key: metrics.total(f"fidelity/{key}") for key in FIDELITY}
        trained = metrics.total("train/trained_tokens")
        if not totals["sampled_tokens"]:
            return
        write_json(self._run.steps_dir.parent / "fidelity.json", {**totals, "trained_tokens": trained}, indent=1)
        share = trained / totals["sampled_tokens"] * 100
        self._run.listener.on_message(
            f"fidelity: {totals['sampled_tokens']:.0f} tokens sampled, {trained:.0f} trained on ({share:.1f} %), "
            f"{totals['unscored_tokens']:.0f} of rollouts without a reward, {totals['twice']:.0f} twice, "
            f"{totals['lost']:.0f} lost, {totals['repaired']:.0f} calls spelled as sampled instead of as rendered, "
            f"{totals['foreign_calls']:.0f} calls outside of rollouts, {metrics.total('rollout/forks'):.0f} forks; "
            f"{metrics.total('rollout/replaced_rollouts'):.0f} rollouts replaced"
        )

    def _report_rollouts(self, collect: Collect, step: StepRollouts) -> None:
        listener, is_train, rollouts, new = self._run.listener, collect.kind == "train", step.rollouts, step.new
        name = f"step {collect.step}" if is_train else f"validation after step {collect.step}"
        rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
        mean = f"mean reward {sum(rewards) / len(rewards):.3f}" if rewards else "no reward"
        if rewards and len(rewards) < len(rollouts):
            mean += f" of the {len(rewards)} with one"
        resumed = f", {len(rollouts) - new} of them from before" if len(rollouts) > new else ""
        silent = f", {no_signal_ratio(rollouts) * 100:.0f} % of rows without signal" if is_train else ""
        replaced = step.figures.get("rollout/replaced_groups")
        silent += f" after {replaced:.0f} such rows were replaced" if replaced else ""
        key = "rollout/raw_reward" if is_train else "eval/validation/reward"
        for environment in self._run.trainer_plan.environments:
            if (reward := step.figures.get(f"{key}/{environment.name}")) is not None:
                silent += f", {environment.name} {reward:.3f}"
        listener.on_message(f"{name}: {len(rollouts)} rollouts{resumed}, {mean}{silent}")
        if ignored := self._model.ignored - self._reported_ignored:
            self._reported_ignored |= ignored
            names = ", ".join(sorted(ignored))
            listener.on_message(f"the rollout asks for {names}, which has no effect while training", warning=True)
