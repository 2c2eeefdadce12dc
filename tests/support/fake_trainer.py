"""A trainer without a model, for tests of whoever talks to one: the real protocol, invented tokens.

Its tokenizer has one token per character, its chat template is `<role>content` per message, its answers are what
`policy` says (by default digits drawn from the request), and its updates change nothing but a counter. Checkpoints
are real folders with a manifest. In process: `with FakeTrainer(plan, socket): ...`; as a process of its own, like the
real one: `python tests/support/run.py fake_trainer PLAN SOCKET`.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from osmosis.base.files import write_bytes, write_text
from osmosis.errors import ModelError, OsmosisError
from osmosis.records.base import utc_now
from osmosis.records.run.rollout import Category, Message
from osmosis.records.run.training import MANIFEST, CheckpointManifest, describe_files, read_manifest
from osmosis.training.protocol.messages import (
    Batch,
    Checkpointed,
    Collect,
    Done,
    Failed,
    ModelFacts,
    SampledAnswer,
    SampleDelta,
    SampledToolCall,
    SampleRequest,
    StepMetrics,
)
from osmosis.training.protocol.plans import TrainerPlan, rows_of_step
from osmosis.training.trainer.service import Stopped, TrainerService

END = "\x03"
"""The end-of-turn token."""

Policy = Callable[[SampleRequest, int], "str | Message"]
"""From a request and the number of updates so far to an answer: its text, or a message with tool calls."""


def render(messages: list[Message], *, prompt: bool = True) -> str:
    """The chat template."""
    text = "".join(f"<{m['role']}>{_said(m)}{END}" for m in messages)
    return f"{text}<assistant>" if prompt else text


def encode(text: str) -> list[int]:
    """One token per character."""
    return [ord(char) for char in text]


def digits(request: SampleRequest, updates: int) -> str:
    """The default policy: two digits, decided by the request's id and the weights."""
    return str(random.Random(f"{request.id}/{request.seed}/{updates}").randint(10, 99))


class FakeSampler:
    """Answers `/sample` by a policy."""

    def __init__(self, plan: TrainerPlan, policy: Policy) -> None:
        self._plan, self._policy = plan, policy
        self.updates = 0
        self.requests: list[SampleRequest] = []

    async def stream(self, request: SampleRequest) -> AsyncGenerator[SampleDelta | SampledAnswer, None]:
        self.requests.append(request)
        prompt = encode(render(request.messages))
        if len(prompt) > self._plan.max_prompt_length:
            what = f"the prompt has {len(prompt)} tokens, and {self._plan.max_prompt_length} are allowed"
            raise ModelError(what, category=Category.CONTEXT_LENGTH.value)
        answer = self._policy(request, self.updates)
        message: Message = {"role": "assistant", "content": answer} if isinstance(answer, str) else answer
        text = _said(message) + END
        limit = min(request.max_tokens or self._plan.max_response_length, self._plan.max_response_length)
        cut, token_ids = len(text) > limit, encode(text)[:limit]
        content = message.get("content")
        calls = [SampledToolCall.model_validate(call) for call in message.get("tool_calls") or ()] if not cut else []
        if request.stream:
            for char in str(content or "")[:limit]:
                yield SampleDelta(content=char)
        draw = random.Random(f"{request.id}/{self.updates}")
        yield SampledAnswer(
            prompt_ids=prompt,
            token_ids=token_ids,
            logprobs=[-draw.random() for _ in token_ids],
            content=content[:limit] if isinstance(content, str) else None,
            tool_calls=calls,
            finish_reason="length" if cut else "tool_calls" if calls else "stop",
            parse="json" if calls else "content",
            step=self.updates,
        )


class FakeTrainer:
    """Serves, collects and saves like the real one. `batches` are the batches it was given."""

    def __init__(self, plan: TrainerPlan, socket: Path, *, policy: Policy = digits) -> None:
        self.plan = plan
        self.service = TrainerService(plan.run, socket)
        self.sampler = FakeSampler(plan, policy)
        self.batches: list[Batch] = []
        self._thread = threading.Thread(target=self.train, name="fake-trainer", daemon=True)

    def __enter__(self) -> FakeTrainer:
        self.service.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.service.request_stop()
        self._thread.join(timeout=5)
        self.service.__exit__()

    def train(self) -> None:
        """All steps, then the last event."""
        try:
            self._train()
        except OsmosisError as error:
            self.service.finish(Failed(category="model", message=error.message, fix=error.hint), timeout_s=2.0)

    def _train(self) -> None:
        plan, service = self.plan, self.service
        done = read_manifest(Path(plan.resume_from)).step if plan.resume_from else 0
        asked: set[int] = set()
        service.sampler, self.sampler.updates = self.sampler, done
        service.health.model, service.health.step, service.health.state = FACTS, done, "training"
        try:
            if not plan.resume_from:
                self._validate(0)
            for step in range(done + 1, plan.steps + 1):
                for ahead in range(step, min(step + plan.max_staleness, plan.steps) + 1):
                    rows = rows_of_step(plan.rows, plan.rows_per_step, ahead, plan.seed)
                    if ahead not in asked:
                        asked.add(ahead)
                        service.ask(Collect(step=ahead, kind="train", rows=rows, samples_per_row=plan.samples_per_row))
                self.batches.append(batch := service.wait(step, "train"))
                done = self.sampler.updates = service.health.step = step
                service.emit(
                    StepMetrics(step=step, values={**_figures(batch, "rollout/raw_reward"), "perf/update_s": 0.1})
                )
                last = step == plan.steps
                if last or step % plan.eval_interval == 0:
                    self._validate(step)
                if last or step % plan.save_interval == 0:
                    self._save(step, "final" if last else "regular")
                elif service.stop_requested.is_set():
                    raise Stopped
        except Stopped:
            self._save(done, "stop")
            service.finish(Done(step=done, stopped=True), timeout_s=2.0)
        else:
            service.finish(Done(step=done), timeout_s=2.0)

    def _validate(self, step: int) -> None:
        if not self.plan.validation_rows:
            return
        samples = self.plan.validation_samples
        rows = self.plan.validation_rows
        batch = self._collect(Collect(step=step, kind="validation", rows=rows, samples_per_row=samples))
        self.service.emit(StepMetrics(step=step, values=_figures(batch, "eval/validation/reward")))

    def _collect(self, collect: Collect) -> Batch:
        self.service.ask(collect)
        batch = self.service.wait(collect.step, collect.kind)
        self.batches.append(batch)
        return batch

    def _save(self, step: int, kind: str) -> None:
        output = Path(self.plan.output_dir)
        aside, folder = output / f".step-{step:06d}", output / f"step-{step:06d}"
        if folder.exists():
            return
        aside.mkdir(parents=True, exist_ok=True)
        write_text(aside / "adapter_config.json", '{"peft_type": "LORA"}\n')
        write_bytes(aside / "adapter_model.safetensors", step.to_bytes(8, "little"))
        manifest = CheckpointManifest.model_validate(
            {
                "run": self.plan.run,
                "step": step,
                "kind": kind,
                "method": self.plan.method,
                "fingerprint": self.plan.fingerprint,
                "base_model": self.plan.model_path,
                "created_at": utc_now().isoformat(),
                "versions": {"osmosis": "fake"},
                "files": describe_files(aside),
            }
        )
        write_text(aside / MANIFEST, manifest.model_dump_json())
        aside.rename(folder)
        self.service.emit(Checkpointed(step=step, path=str(folder), kind=manifest.kind))


FACTS = ModelFacts(
    architecture="Fake",
    parameters=0,
    trainable_parameters=0,
    dtype="float32",
    device="none",
    chat_template=True,
    tool_calls="json",
)


def _figures(batch: Batch, reward_key: str) -> dict[str, float]:
    rewards = [one.reward for one in batch.sequences if one.reward is not None and one.part == 0]
    return {reward_key: sum(rewards) / len(rewards)} if rewards else {}


def _said(message: Message) -> str:
    calls = message.get("tool_calls") or ()
    text = message.get("content")
    return (text if isinstance(text, str) else "") + "".join(
        f"<tool_call>{call['function']['name']} {call['function']['arguments']}</tool_call>" for call in calls
    )


def main(arguments: list[str]) -> int:
    """As a process of its own."""
    plan = TrainerPlan.model_validate_json(Path(arguments[0]).read_bytes())
    trainer = FakeTrainer(plan, Path(arguments[1]))
    with trainer.service:
        trainer.train()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
