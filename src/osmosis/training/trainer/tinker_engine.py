"""The engine `tinker`: a training server elsewhere, spoken to over the Tinker API. Every name of it is in this file.

The server holds the weights and does the arithmetic; the loop, the advantages and the checkpoints are ours. Its loss
`importance_sampling` corrects for what differs between its sampler and its trainer; it clips nothing and knows no KL
penalty, so a plan that wants one is refused. A checkpoint is the name of a state that the server keeps.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import tinker
from tinker import types

from osmosis.base.files import write_json
from osmosis.errors import ModelError
from osmosis.records.rollout import Category
from osmosis.training.link import CheckpointManifest, Done, ModelFacts, Sequence, TrainerPlan

from .advantages import learnable
from .answering import Answering, Question
from .answers import AnswerReader
from .collecting import Collector
from .loading import load_tokenizer
from .remote_sampler import RemoteSampler, Tokens
from .saving import CheckpointStore, Kind, resume_point, versions
from .service import Stopped, TrainerService
from .training_failed import TrainingFailed

API_KEY = "TINKER_API_KEY"
STATE = "tinker.json"
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8


def run(plan: TrainerPlan, service: TrainerService | None) -> Done:
    """Trains. Raises what `training_failed.failed_event` explains."""
    assert service is not None
    _check(plan)
    resumed = resume_point(plan)
    tokenizer = load_tokenizer(Path(str(plan.tokenizer_path)))
    reader = AnswerReader(tokenizer, getattr(tokenizer, "response_template", None))
    engine = TinkerEngine(plan, service, CheckpointStore(plan), resumed)
    answering = Answering(plan, tokenizer, reader, end_ids=[tokenizer.eos_token_id])
    sampler = RemoteSampler(answering, engine.complete, concurrency=plan.concurrency)
    sampler.start(service.loop)
    engine.end_ids = answering.end_ids
    engine.collector = Collector(plan, service, sampler)
    service.sampler = sampler
    service.health.model = ModelFacts(
        architecture=plan.model_path,
        parameters=0,
        trainable_parameters=0,
        dtype="the server's",
        device=str(plan.engine_url),
        chat_template=True,
        tool_calls=reader.reads_by,
        versions=versions(),
    )
    service.health.state = "training"
    return engine.train()


class TinkerEngine:
    """One run against one server."""

    collector: Collector

    def __init__(
        self, plan: TrainerPlan, service: TrainerService, store: CheckpointStore, resumed: CheckpointManifest | None
    ) -> None:
        self.plan, self.service, self.store = plan, service, store
        self.step = resumed.step if resumed else 0
        self.end_ids: list[int] = []
        self.service.health.step = self.step
        try:
            client = tinker.ServiceClient(base_url=str(plan.engine_url), api_key=os.environ.get(API_KEY) or None)
            if resumed is None:
                self._training = client.create_lora_training_client(
                    base_model=plan.model_path, rank=plan.lora_rank, seed=plan.seed
                )
            else:
                state = json.loads((Path(str(plan.resume_from)) / STATE).read_text("utf-8"))
                self._training = client.create_training_client_from_state_with_optimizer(state["state"])
        except Exception as error:
            # The client raises its own, httpx's and built-in errors; all mean that there is no server to train on.
            raise TrainingFailed(
                f"the Tinker server at {plan.engine_url} cannot be used: {error}",
                kind="engine",
                hint=f"check base_url, the secret behind {API_KEY}, and that the server knows {plan.model_path}",
            ) from error
        self._publish()

    def train(self) -> Done:
        """To the end, or to a stop."""
        if self.step == 0:
            self.collector.validate(0)
        while self.step < self.plan.steps:
            try:
                sequences = self.collector.train(self.step + 1)
            except Stopped:
                if self.step and not self.store.has(self.step):
                    self._save("stop")
                return Done(step=self.step, stopped=True)
            values = self._update(sequences)
            self.step += 1
            self.collector.updated()
            if self.collector.wants_validation(self.step):
                self.collector.validate(self.step)
            self.collector.report(self.step, values)
            if self._saved_and_stopped():
                return Done(step=self.step, stopped=True)
        return Done(step=self.step)

    async def complete(self, question: Question) -> Tokens:
        """One answer of the published weights."""
        parameters = types.SamplingParams(
            max_tokens=question.max_tokens,
            temperature=question.temperature,
            top_p=question.top_p,
            seed=question.request.seed,
            stop=self.end_ids,
        )
        prompt = types.ModelInput.from_ints(question.prompt_ids)
        try:
            found = await self._sampling.sample_async(prompt=prompt, num_samples=1, sampling_params=parameters)
        except tinker.TinkerError as error:
            raise ModelError(f"the Tinker server: {error}", category=Category.SERVER_ERROR.value) from error
        sequence = found.sequences[0]
        return list(sequence.tokens), list(sequence.logprobs or [])

    def _update(self, sequences: list[Sequence | None]) -> dict[str, float]:
        data = [_datum(one, per_token) for one, per_token in learnable(sequences, self.plan)]
        rate = learning_rate(self.plan, self.step + 1)
        if not data:
            return {"train/lr": rate}  # no group has a signal: there is nothing to send
        adam = types.AdamParams(learning_rate=rate, beta1=_BETA1, beta2=_BETA2, eps=_EPSILON)
        metrics: dict[str, float] = {}
        for _ in range(self.plan.num_iterations):
            backward = self._training.forward_backward(data, "importance_sampling")
            step = self._training.optim_step(adam)
            metrics = dict(backward.result().metrics)
            step.result()
        self._publish()
        loss = next((value for key, value in metrics.items() if key.startswith("loss")), None)
        if loss is not None and not math.isfinite(loss):
            raise TrainingFailed(f"the loss of step {self.step + 1} is not finite: training diverged", kind="diverged")
        return {"train/lr": rate, **({"train/loss": loss} if loss is not None else {})}

    def _publish(self) -> None:
        """The weights as they are now are what is sampled from here on."""
        self._sampling: Any = self._training.save_weights_and_get_sampling_client()

    def _saved_and_stopped(self) -> bool:
        stop = self.service.stop_requested.is_set()
        if self.step == self.plan.steps:
            self._save("final")
            return False
        if stop or self.step % self.plan.save_interval == 0:
            self._save("stop" if stop else "regular")
        return stop

    def _save(self, kind: Kind) -> None:
        name = f"{self.plan.run}-{self.step:06d}"
        state = self._training.save_state(name).result().path
        weights = self._training.save_weights_for_sampler(name).result().path
        draft = self.store.draft(self.step)
        write_json(draft / STATE, {"state": state, "weights": weights, "base_url": self.plan.engine_url}, indent=2)
        self.service.emit(self.store.finish(draft, self.step, kind, self.collector.reward_of(self.step)))


def learning_rate(plan: TrainerPlan, step: int) -> float:
    """Of a step, counted from 1: warm-up, then the schedule down to zero after the last one."""
    done = step - 1
    if done < plan.warmup_steps:
        return plan.lr * done / plan.warmup_steps
    if plan.schedule == "constant":
        return plan.lr
    share = (done - plan.warmup_steps) / max(1, plan.steps - plan.warmup_steps)
    return plan.lr * (1 - share if plan.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * share)))


def _datum(one: Sequence, per_token: list[float]) -> Any:
    """A sequence as the server takes it: targets are one token ahead of inputs, zeros stand over the prompt."""
    ids, before = one.token_ids, one.prompt_length - 1
    return types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={
            "target_tokens": types.TensorData(data=ids[1:], dtype="int64", shape=[len(ids) - 1]),
            "logprobs": types.TensorData(data=[0.0] * before + one.logprobs, dtype="float32", shape=[len(ids) - 1]),
            "advantages": types.TensorData(data=[0.0] * before + per_token, dtype="float32", shape=[len(ids) - 1]),
        },
    )


def _check(plan: TrainerPlan) -> None:
    if plan.method != "grpo":
        raise TrainingFailed('method = "sft" needs engine = "trl"', kind="data", hint='set engine = "trl"')
    if plan.kl:
        raise TrainingFailed("engine tinker has no KL penalty", kind="data", hint="set kl = 0")
    if plan.tokenizer_path is None:
        raise TrainingFailed(
            "engine tinker needs the model's tokenizer on this machine",
            kind="model",
            hint="upload the tokenizer files of the base model with `osmosis model upload`",
        )
