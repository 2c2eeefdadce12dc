"""The engine `tinker`: a server elsewhere holds the weights. Its `importance_sampling` loss clips nothing and knows no
KL penalty, so a plan that wants one is refused. All names of the Tinker API are in this file."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import tinker
from tinker import types

from osmosis.base.files import write_json
from osmosis.errors import ModelError
from osmosis.records.run.rollout import Category
from osmosis.records.run.training import CheckpointManifest
from osmosis.training.protocol.messages import Done, ModelFacts
from osmosis.training.protocol.plans import TrainerPlan
from osmosis.training.trainer.advantages import WeighedSequence, weigh_rollouts
from osmosis.training.trainer.answering import Answering, Question
from osmosis.training.trainer.checkpoints import CheckpointStore, load_resume_point, versions
from osmosis.training.trainer.load_model import load_tokenizer
from osmosis.training.trainer.loop import Ranks, Rollouts, TrainingLoop
from osmosis.training.trainer.parse_answers import AnswerReader, response_template
from osmosis.training.trainer.remote_sampler import RemoteSampler, Tokens
from osmosis.training.trainer.service import TrainerService, TrainingFailed

API_KEY = "TINKER_API_KEY"
STATE = "tinker.json"
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8


def run(plan: TrainerPlan, service: TrainerService | None) -> Done:
    assert service is not None
    if plan.method != "grpo":
        raise TrainingFailed('method = "sft" needs engine = "local"', kind="data", hint='set engine = "local"')
    if plan.kl:
        raise TrainingFailed("engine tinker has no KL penalty", kind="data", hint="set kl = 0")
    if plan.tokenizer_path is None:
        hint = "upload the tokenizer files of the base model with `osmosis model upload`"
        raise TrainingFailed("engine tinker needs the model's tokenizer on this machine", hint=hint)
    resumed = load_resume_point(plan)
    tokenizer = load_tokenizer(Path(str(plan.tokenizer_path)))
    reader = AnswerReader(tokenizer, response_template(tokenizer))
    engine = TinkerEngine(plan, service, CheckpointStore(plan), resumed)
    answering = Answering(plan, tokenizer, reader, end_ids=[tokenizer.eos_token_id])
    sampler = RemoteSampler(answering, engine.complete, concurrency=plan.max_requests)
    sampler.start(service.loop)
    engine.end_ids = answering.end_ids
    engine.sampler = service.sampler = sampler
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


class TinkerEngine(TrainingLoop):
    def __init__(
        self, plan: TrainerPlan, service: TrainerService, store: CheckpointStore, resumed: CheckpointManifest | None
    ) -> None:
        super().__init__(plan, Ranks(), service, store, resumed.step if resumed else 0)
        self.end_ids: list[int] = []
        service.health.step = self.step
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
            message = f"the Tinker server at {plan.engine_url} cannot be used: {error}"
            hint = f"check base_url, the secret behind {API_KEY}, and that the server knows {plan.model_path}"
            raise TrainingFailed(message, kind="engine", hint=hint) from error

    async def complete(self, question: Question) -> Tokens:
        parameters = types.SamplingParams(
            max_tokens=question.max_tokens,
            temperature=question.temperature,
            top_p=question.top_p,
            seed=question.request.seed,
            stop=self.end_ids,
        )
        prompt = types.ModelInput.from_ints(question.prompt_ids)
        try:
            answer = await self._sampling.sample_async(prompt=prompt, num_samples=1, sampling_params=parameters)
        except tinker.TinkerError as error:
            raise ModelError(f"the Tinker server: {error}", category=Category.SERVER_ERROR.value) from error
        sequence = answer.sequences[0]
        return list(sequence.tokens), list(sequence.logprobs or [])

    def update(self, rollouts: Rollouts) -> dict[str, float]:
        weighed = [part for parts in weigh_rollouts(rollouts, self.plan) for part in parts]
        data = [_datum(part) for part in weighed if part.advantage and part.sequence.prompt_length]
        if not data:
            return {}  # no group has a signal: there is nothing to send
        rate = self.learning_rate(self.step + 1)
        adam = types.AdamParams(learning_rate=rate, beta1=_BETA1, beta2=_BETA2, eps=_EPSILON)
        values: dict[str, float] = {}
        for _ in range(self.plan.num_iterations):
            backward = self._training.forward_backward(data, "importance_sampling")
            step = self._training.optim_step(adam)
            result = backward.result()
            values = values or _measure(data, result.loss_fn_outputs)
            losses = [value for key, value in result.metrics.items() if key.startswith("loss")]
            values |= {"train/loss": losses[0]} if losses else {}
            step.result()
        return values

    def publish(self) -> None:
        self._sampling: Any = self._training.save_weights_and_get_sampling_client()

    def write(self, draft: Path) -> None:
        name = f"{self.plan.run}-{self.step:06d}"
        state = self._training.save_state(name).result().path
        weights = self._training.save_weights_for_sampler(name).result().path
        write_json(draft / STATE, {"state": state, "weights": weights, "base_url": self.plan.engine_url}, indent=2)


def _measure(data: list[types.Datum], outputs: list[dict[str, types.TensorData]]) -> dict[str, float]:
    """Return the loss, which not every server sends, and how far its trainer is from its sampler."""
    if not all("logprobs" in output for output in outputs):  # a server may leave them out
        return {}
    names = ("advantages", "logprobs")
    gains, before = (np.concatenate([datum.loss_fn_inputs[name].to_numpy() for datum in data]) for name in names)
    difference = np.concatenate([output["logprobs"].to_numpy() for output in outputs]) - before
    apart = np.abs(difference[gains != 0])
    return {
        "train/loss": -float((gains * np.exp(difference))[gains != 0].sum()),
        "train/mismatch_mean": float(apart.mean()),
        "train/mismatch_max": float(apart.max()),
    }


def _datum(part: WeighedSequence) -> Any:
    """Return a sequence as the server takes it: targets are one token ahead of inputs, zeros stand over the prompt."""
    sequence, factor = part.sequence, part.advantage * part.weight
    ids, before = list(sequence.token_ids), sequence.prompt_length - 1
    shape = [len(ids) - 1]
    logprobs = [0.0] * before + list(sequence.logprobs)
    per_token = [0.0] * before + [factor * sampled for sampled in sequence.mask]
    return types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={
            "target_tokens": types.TensorData(data=ids[1:], dtype="int64", shape=shape),
            "logprobs": types.TensorData(data=logprobs, dtype="float32", shape=shape),
            "advantages": types.TensorData(data=per_token, dtype="float32", shape=shape),
        },
    )
