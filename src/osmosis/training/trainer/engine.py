"""The engine `local`: the step is written out below on PyTorch and PEFT. Rollouts become trees of tokens (`packing`),
these micro-batches, each of which adds its gradient: the loss is a sum over tokens, so how it is cut changes memory and
time alone. On a GPU an adapter has the precision of the model around it, and the optimizer has its weights in fp32."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import Module

from osmosis.records.run.training import CheckpointManifest
from osmosis.training.protocol.messages import Notice
from osmosis.training.protocol.plans import TrainerPlan, rows_of_step
from osmosis.training.trainer.advantages import WeighedSequence, weigh_rollouts
from osmosis.training.trainer.answering import LabeledExample, read_examples
from osmosis.training.trainer.checkpoints import CheckpointStore
from osmosis.training.trainer.load_model import Loaded, free_memory, fuse_kernels, load_teacher, peak_memory
from osmosis.training.trainer.loop import Ranks, Rollouts, TrainingLoop, shard_frozen
from osmosis.training.trainer.losses import (
    CHUNK,
    TokenPredictor,
    importance_weights,
    kl_estimate,
    policy_loss,
    preference_loss,
    sum_by_sequence,
)
from osmosis.training.trainer.packing import Layout, MicroBatch, Part, count_flops, measure_utilization, pack, plant
from osmosis.training.trainer.remote_sampler import VllmServers
from osmosis.training.trainer.service import TrainerService, TrainingFailed

BETAS, EPSILON = (0.9, 0.999), 1e-8
OPTIMIZER = "optimizer.safetensors"
CPU_TOKENS, GPU_TOKENS = 16_384, 131_072  # Most tokens of a micro-batch where memory allows for more
ENOUGH_TOKENS = 16_384  # From so many on, memory is better spent on keeping activations than on a larger micro-batch
MEMORY_SHARE = 0.5
SAME_LOGITS = 0.05  # Largest difference of logits, packed and alone, that rounding explains (bf16)
_ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}


@dataclass(slots=True)
class Figures:
    """Sums over the trained tokens of a step, and what they are divided by at its end."""

    loss: float = 0.0
    tokens: int = 0
    entropy: float = 0.0
    clipped_low: int = 0
    clipped_high: int = 0
    hits: int = 0
    kl: float = 0.0
    kl_tokens: int = 0
    weight: float = 0.0
    teacher_kl: float = 0.0
    differences: list[NDArray[np.float32]] = field(default_factory=list)
    """Log-probability now minus as sampled, before the step's first update."""

    def add(self, other: "Figures") -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def values(self, plan: TrainerPlan) -> dict[str, float]:
        tokens = max(1, self.tokens)
        values = {"train/loss": self.loss, "train/entropy_loss": self.entropy / tokens}
        if plan.method != "grpo":
            return values | ({"train/token_accuracy": self.hits / tokens} if plan.method == "sft" else {})
        if self.kl_tokens:
            values["train/kl"] = self.kl / self.kl_tokens
        values |= {
            "train/clip_ratio": (self.clipped_low + self.clipped_high) / tokens,
            "train/clip_ratio_low": self.clipped_low / tokens,
            "train/clip_ratio_high": self.clipped_high / tokens,
        }
        if self.differences:
            difference = np.concatenate(self.differences).astype(np.float64)
            ratio, apart = np.exp(difference), np.abs(difference)
            high = 1 + (plan.clip if plan.clip_high is None else plan.clip_high)
            values |= {
                "train/trained_tokens": float(len(difference)),
                "train/mismatch_mean": float(apart.mean()),
                "train/mismatch_p99": float(np.quantile(apart, 0.99)),
                "train/mismatch_max": float(apart.max()),
                "train/mismatch_kl": float((ratio - difference - 1).mean()),
                "train/importance_ratio": float(ratio.mean()),
                "train/outside_clip": float(((ratio < 1 - plan.clip) | (ratio > high)).mean()),
                "train/importance_weight": self.weight / len(difference),
            }
            if plan.loss == "distill":
                values["train/teacher_kl"] = self.teacher_kl / len(difference)
        return values


class LocalEngine(TrainingLoop):
    def __init__(
        self,
        plan: TrainerPlan,
        loaded: Loaded,
        ranks: Ranks,
        service: TrainerService | None,
        store: CheckpointStore | None,
        resumed: CheckpointManifest | None = None,
    ) -> None:
        super().__init__(plan, ranks, service, store, resumed.step if resumed else 0)
        self.loaded, self.device = loaded, loaded.device
        temperature = plan.temperature if plan.method == "grpo" else 1.0
        self.servers: VllmServers | None = None
        self.reference: TokenPredictor | None = None
        if plan.tune == "full" and (plan.kl or plan.method == "dpo"):
            self.reference = TokenPredictor(deepcopy(loaded.model).eval(), temperature)
        self.teacher = TokenPredictor(load_teacher(plan, loaded), temperature) if plan.teacher_path else None
        self.model = _trainable_model(plan, loaded)
        if plan.is_sharded:
            shard_frozen(self.model, self.device)
            fuse_kernels(loaded.model)
        self.module = self.model.get_base_model() if plan.tune == "lora" else self.model
        self.weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        for weight in self.weights:  # PEFT makes an adapter of quantized layers in fp32
            weight.data = weight.data.to(loaded.dtype)
        self.masters = [weight if weight.dtype == torch.float32 else weight.detach().float() for weight in self.weights]
        """The weights as the optimizer moves them, and their gradients."""
        self.optimizer = torch.optim.AdamW(
            self.masters, lr=plan.lr, betas=BETAS, eps=EPSILON, weight_decay=plan.weight_decay
        )
        if plan.resume_from is not None:
            self._restore(Path(plan.resume_from) / OPTIMIZER)
        self.predict = TokenPredictor(self.model, temperature)
        self.budget = plan.micro_batch_tokens or self._choose_budget()
        self.layout = self._choose_layout()
        self.examples: list[list[LabeledExample]] = []
        if plan.method != "grpo":
            self.examples = read_examples(plan, loaded.tokenizer, service)

    def use_servers(self, servers: VllmServers) -> None:
        self.servers = servers
        if self.plan.samplers_sleep:  # an update has their memory, too
            servers.sleep()
            self.budget = self.plan.micro_batch_tokens or self._choose_budget()

    def publish(self) -> None:
        if self.servers is not None:  # the builtin sampler shares the module
            if self.plan.samplers_sleep and self.device.type == "cuda":
                torch.cuda.empty_cache()  # they take it again
            self.servers.publish(self.step, self.model.save_pretrained)

    def write(self, draft: Path) -> None:
        self.model.save_pretrained(draft)
        if self.plan.tune == "full":
            self.loaded.tokenizer.save_pretrained(draft)
        state = self.optimizer.state
        tensors = {
            f"{number}.{name}": state[weight][name].contiguous()
            for number, weight in enumerate(self.masters)
            for name in state[weight]
        }
        if self.loaded.dtype != torch.float32:
            tensors |= {f"{number}.weight": weight for number, weight in enumerate(self.masters)}
        save_file(tensors, draft / OPTIMIZER)
        (draft / "README.md").unlink(missing_ok=True)  # PEFT's empty model card

    def update(self, rollouts: Rollouts) -> dict[str, float]:
        plan = self.plan
        if self.servers is not None:
            self.servers.sleep()
        if plan.method != "grpo":
            rows = rows_of_step(range(len(self.examples)), plan.rows_per_step, self.step + 1, plan.seed)
            parts = _label([self.examples[row] for row in rows], plan)
        else:
            parts = [[_to_part(weighed) for weighed in rollout] for rollout in weigh_rollouts(rollouts, plan)]
        if not parts:
            return {}  # no rollout of the step has a reward
        while True:
            try:
                return self._iterate(parts)
            except torch.OutOfMemoryError:
                longest = max(len(part.token_ids) for rollout in parts for part in rollout)
                if self.ranks.world > 1 or self.budget <= longest:
                    raise
                self.budget //= 2
                self.model.zero_grad(set_to_none=True)
                if self.device.type == "cuda":
                    torch.cuda.empty_cache()
                if self.service is not None:
                    message = f"out of memory: micro-batches of {self.budget} tokens from here on"
                    self.service.emit(Notice(step=self.step + 1, message=message))

    def _iterate(self, parts: list[list[Part]]) -> dict[str, float]:
        plan, began = self.plan, time.perf_counter()
        trees = plant(parts, self.layout, self.budget)
        pieces = max(self.ranks.world, plan.gradient_accumulation)
        budget = min(self.budget, math.ceil(sum(tree.length for tree in trees) / pieces))
        batches = pack(trees, self.layout, budget)
        measured = self.step % len(batches)
        """The micro-batch whose divergence from the base model is looked at where it has no weight."""
        world = self.ranks.world
        # Sharded weights are gathered by all processes together, so each has as many passes: some without a weight.
        idle = replace(batches[-1], weights=torch.zeros_like(batches[-1].weights))
        padding = [idle] * (-len(batches) % world) if plan.is_sharded else []
        every = list(enumerate([*batches, *padding]))[self.ranks.number :: world]
        old: dict[int, Tensor] = {}
        figures = Figures()
        norm = 0.0
        preferences = self._compare_pairs([batch for _, batch in every]) if plan.method == "dpo" else {}
        if self.teacher is not None:
            with torch.no_grad():
                for _, batch in every:
                    batch.advantages = self.teacher(batch.to(self.device))[0].cpu()
        iterations = plan.num_iterations if plan.method == "grpo" else 1
        for _ in range(iterations):
            self.optimizer.zero_grad(set_to_none=True)
            for number, batch in every:
                is_measured = number // world == measured // world
                share = self._add_gradient(batch.to(self.device), number, old, measure=is_measured)
                if number < len(batches):
                    figures.add(share)
            norm = self._step_optimizer()
        total = Figures()
        for share in self.ranks.gather(figures):
            total.add(share)
        total.loss /= iterations
        seconds = (time.perf_counter() - began) / iterations
        mfu = measure_utilization(count_flops(self.module, trees), seconds, self.loaded, self.ranks.world)
        utilization = {} if mfu is None else {"perf/mfu": mfu}
        peak = peak_memory(self.device)
        if self.service is not None:
            self.service.health.peak_memory_bytes = peak
        return {
            **total.values(plan),
            **preferences,
            **utilization,
            "train/grad_norm": norm,
            "perf/memory_gib": peak / 2**30,
        }

    def _add_gradient(self, batch: MicroBatch, number: int, old: dict[int, Tensor], *, measure: bool) -> Figures:
        plan = self.plan
        now, entropy, hits = self.predict(batch)
        figures = Figures(tokens=len(now), entropy=float(entropy.sum()))
        if plan.method != "grpo":
            figures.hits = int(hits.sum())
            loss = -(now * batch.weights * batch.advantages).sum()
        else:
            if is_first := number not in old:
                old[number] = now.detach()
            advantages = batch.advantages if self.teacher is None else batch.advantages - old[number]
            clipped = policy_loss(plan, now, old[number], advantages, batch.sequences)
            correction = importance_weights(plan, old[number], batch.logprobs, batch.sequences)
            per_token = clipped.per_token * correction
            if plan.kl or (measure and is_first and plan.tune == "lora"):
                divergence = kl_estimate(now, self._reference_logprobs(batch))
                if plan.kl:
                    per_token = per_token + plan.kl * divergence * clipped.ratio
                figures.kl, figures.kl_tokens = float(divergence.detach().sum()), len(now)
            loss = (per_token * batch.weights).sum()
            figures.clipped_low, figures.clipped_high = int(clipped.clipped_low.sum()), int(clipped.clipped_high.sum())
            if is_first:
                figures.differences = [(old[number] - batch.logprobs).cpu().numpy()]
                figures.weight = float(correction.sum())
                figures.teacher_kl = -float(advantages.sum())
        loss.backward()
        for weight, master in zip(self.weights, self.masters, strict=True):
            if master is not weight and weight.grad is not None:
                master.grad = weight.grad.float() if master.grad is None else master.grad.add_(weight.grad)
                weight.grad = None
        figures.loss = float(loss.detach())
        return figures

    def _compare_pairs(self, batches: list[MicroBatch]) -> dict[str, float]:
        """Make the slope of the preference loss (`losses`) the advantage of each part; return figures of the step."""
        gains: dict[int, float] = {}
        for batch in batches:
            on_device = batch.to(self.device)
            with torch.no_grad():
                now, _, _ = self.predict(on_device)
            change = sum_by_sequence(now - self._reference_logprobs(on_device), on_device.sequences)
            gains |= dict(zip(batch.numbers.tolist(), change.tolist(), strict=True))
        for share in self.ranks.gather(gains):
            gains |= share
        by_part = torch.tensor([gains[number] for number in range(len(gains))])
        losses, margins, slopes = preference_loss(self.plan, by_part)
        for batch in batches:
            batch.advantages = slopes[batch.numbers][batch.sequences]
        return {
            "train/loss": float(losses.mean()),
            "train/reward_margin": float(margins.mean()),
            "train/preference_accuracy": float((margins > 0).float().mean()),
        }

    def _step_optimizer(self) -> float:
        for master in self.masters:
            if master.grad is None:
                master.grad = torch.zeros_like(master)
        self.ranks.add_up([master.grad for master in self.masters])
        norm = float(torch.nn.utils.clip_grad_norm_(self.masters, self.plan.max_grad_norm))
        if not math.isfinite(norm):
            message = f"the gradient of step {self.step + 1} is not finite: training diverged"
            hint = 'resume from the last checkpoint with a lower lr, more warm-up or precision = "fp32"'
            raise TrainingFailed(message, kind="diverged", hint=hint)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(self.step + 1)
        self.optimizer.step()
        for weight, master in zip(self.weights, self.masters, strict=True):
            if master is not weight:
                weight.data.copy_(master)
        return norm

    def _reference_logprobs(self, batch: MicroBatch) -> Tensor:
        with torch.no_grad():
            if self.reference is not None:
                return self.reference(batch)[0]
            with self.model.disable_adapter():
                return self.predict(batch)[0]

    # --- memory and layout ---

    def _choose_budget(self) -> int:
        """Return the tokens of a micro-batch. Activations are kept as long as enough tokens fit with them."""
        keeping = self._measure_budget(is_checkpointing=False)
        enough = max(ENOUGH_TOKENS, self.plan.max_prompt_length + self.plan.max_response_length)
        if self.plan.gradient_checkpointing == "auto" and keeping >= enough:
            self.model.gradient_checkpointing_disable()
        elif self.plan.gradient_checkpointing:
            return self._measure_budget(is_checkpointing=True)
        return keeping

    def _measure_budget(self, *, is_checkpointing: bool) -> int:
        config = self.module.config.get_text_config()
        depth = config.num_hidden_layers
        stored = 2 * depth + 34 if is_checkpointing else 34 * depth
        mask = 4 * (self.plan.max_prompt_length + self.plan.max_response_length)
        per_token = mask + stored * config.hidden_size * self.loaded.dtype.itemsize
        per_logits = 12 * config.vocab_size
        room = MEMORY_SHARE * free_memory(self.device)
        if self.predict.is_chunked:
            room -= CHUNK * per_logits
        else:
            per_token += per_logits
        most = CPU_TOKENS if self.device.type == "cpu" else GPU_TOKENS
        return min(most, max(1, int(room / per_token)))

    def _choose_layout(self) -> Layout:
        config = self.module.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ())
        windowed = "sliding_attention" in kinds or (not kinds and getattr(config, "sliding_window", None))
        flash = "flash" in str(config._attn_implementation)
        if kinds - _ATTENTION or "chunked_attention" in kinds or (windowed and not flash):
            return "padded"
        layout: Layout = "flat" if flash else "trees"
        if self._differs_packed(layout):
            if self.service is not None:
                message = "this model cannot be packed: each sequence has a row of its own, which takes more time"
                self.service.emit(Notice(step=self.step, message=message))
            return "padded"
        return layout

    def _differs_packed(self, layout: Layout) -> bool:
        """Return whether sequences in one row have other logits than alone: the model mixes what it should not."""
        vocabulary = self.module.config.get_text_config().vocab_size
        tokens = (np.arange(24, dtype=np.int32) * 7 + 1) % vocabulary
        others = np.concatenate([tokens[:6], tokens[::-1][:9]])
        parts = [Part(ids, np.arange(1, len(ids)), np.zeros(len(ids) - 1, np.float32)) for ids in (tokens, others)]
        with torch.no_grad(), self.sampling_mode():
            together = pack(plant([parts, parts[1:]], layout, 1000), layout, 1000)
            packed = torch.cat([self.predict.logits(batch.to(self.device)) for batch in together])
            alone = [
                self.predict.logits(pack(plant([[part]], "padded", 99), "padded", 99)[0].to(self.device))
                for part in (*parts, parts[1])
            ]
        return float((packed - torch.cat(alone)).abs().max()) > SAME_LOGITS * max(1.0, float(packed.abs().max()))

    @contextmanager
    def sampling_mode(self) -> Iterator[None]:
        training = self.model.training
        self.model.eval()
        try:
            yield
        finally:
            self.model.train(training)

    def _restore(self, path: Path) -> None:
        tensors = load_file(path, device=str(self.device))
        for number, master in enumerate(self.masters):
            if (weight := tensors.get(f"{number}.weight")) is not None:
                master.copy_(weight)
            for name in ("step", "exp_avg", "exp_avg_sq"):
                value = tensors[f"{number}.{name}"]
                self.optimizer.state[master][name] = value.cpu() if name == "step" else value


def _trainable_model(plan: TrainerPlan, loaded: Loaded) -> Module:
    model = loaded.model
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0
    if plan.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    torch.manual_seed(plan.seed)
    if plan.tune == "full":
        return model.float().requires_grad_(True).train()
    if (start := plan.resume_from or plan.adapter_path) is not None:
        return PeftModel.from_pretrained(model, start, is_trainable=True, autocast_adapter_dtype=False).train()
    adapter = LoraConfig(
        r=plan.lora_rank,
        lora_alpha=plan.lora_alpha,
        lora_dropout=0.0,
        bias="none",
        target_modules=plan.lora_targets or "all-linear",
        task_type="CAUSAL_LM",
    )
    adapted = get_peft_model(model, adapter, autocast_adapter_dtype=False).train()
    adapted.peft_config["default"].base_model_name_or_path = plan.base_model or plan.model_path
    return adapted


def _to_part(weighed: WeighedSequence) -> Part:
    sequence = weighed.sequence
    trained = np.flatnonzero(np.frombuffer(sequence.mask, dtype=np.uint8))
    logprobs = np.frombuffer(sequence.logprobs, dtype=np.float32)
    if not sequence.prompt_length:
        trained = trained[trained > 0]  # nothing predicts a first token
    return Part(
        np.frombuffer(sequence.token_ids, dtype=np.int32),
        trained + sequence.prompt_length,
        logprobs[trained],
        weighed.advantage,
        weighed.weight,
    )


def _label(examples: list[list[LabeledExample]], plan: TrainerPlan) -> list[list[Part]]:
    sides = [side for example in examples for side in example]
    trained = [np.flatnonzero(np.asarray(side.mask[1:])) + 1 for side in sides]
    weight = 1.0 / max(1, sum(map(len, trained))) if plan.method == "sft" else 1.0
    parts = [
        Part(np.asarray(side.token_ids, np.int32), where, np.zeros(len(where), np.float32), 1.0, weight, number)
        for number, (side, where) in enumerate(zip(sides, trained, strict=True))
    ]
    size = len(parts) // len(examples)
    return [parts[at : at + size] for at in range(0, len(parts), size)]
