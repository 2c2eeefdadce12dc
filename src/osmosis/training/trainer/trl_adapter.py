"""The engine `trl`: GRPO and SFT with LoRA on this machine. Every name of TRL, PEFT and accelerate is in this file.

TRL owns the loop: `GRPOTrainer` calls `rollout_func` once per step and gets the tokens, masks and rewards that the job
sent; `SFTTrainer` gets token ids with labels. What they do by default is not relied on: every option that changes the
result is set. The checkpoints are those of `transformers.Trainer`, which hold adapter, optimizer, schedule, random
state and step; their pickled arguments are left out.

Group Relative Policy Optimization: Shao et al. 2024 (arXiv:2402.03300); `dr_grpo`: Liu et al. 2025 (arXiv:2503.20783);
`dapo`: Yu et al. 2025 (arXiv:2503.14476).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer
from trl.chat_template_utils import add_response_schema

from osmosis.base.json_types import JsonObject
from osmosis.training.link import Done, Sequence, TrainerPlan
from osmosis.training.order import rows_of_step

from .collecting import Collector
from .examples import read_examples
from .loading import Loaded, peak_memory
from .ranks import Ranks
from .saving import CheckpointStore, Kind
from .service import Stopped, TrainerService
from .training_failed import TrainingFailed

_KEYS = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "learning_rate": "train/lr",
    "entropy": "train/entropy_loss",
    "kl": "train/kl",
    "clip_ratio/region_mean": "train/clip_ratio",
    "clip_ratio/low_mean": "train/clip_ratio_low",
    "clip_ratio/high_mean": "train/clip_ratio_high",
    "mean_token_accuracy": "train/token_accuracy",
}
"""TRL's names of figures, and the contract's."""
_BETAS = (0.9, 0.999)
_EPSILON = 1e-8


def response_template(tokenizer: Any) -> JsonObject | None:
    """How answers are read: the tokenizer's own response template, else the one TRL knows for its chat template."""
    own = getattr(tokenizer, "response_template", None)
    if own:
        return dict(own)
    try:
        known = getattr(add_response_schema(tokenizer), "response_template", None)
    except ValueError:  # no chat template that TRL knows
        return None
    return dict(known) if known else None


class TrlEngine:
    """One run. Rank 0 has service, collector and store; the other ranks follow it."""

    def __init__(
        self,
        plan: TrainerPlan,
        loaded: Loaded,
        ranks: Ranks,
        service: TrainerService | None,
        store: CheckpointStore | None,
    ) -> None:
        self.plan, self.loaded, self.ranks = plan, loaded, ranks
        self.service, self.store = service, store
        self.collector: Collector | None = None
        self.publish: Callable[[int], None] | None = None
        """Told the step whose weights are in place, when somebody else samples them."""
        make = self._grpo if plan.method == "grpo" else self._sft
        self.trainer = make()
        self.trainer.remove_callback(PrinterCallback)
        self.trainer.add_callback(_Course(self))

    @property
    def module(self) -> Any:
        """The model with its adapter, as it is sampled."""
        return self.trainer.accelerator.unwrap_model(self.trainer.model).get_base_model()

    @property
    def per_rollout_step(self) -> int:
        return self.plan.num_iterations if self.plan.method == "grpo" else 1

    @property
    def step(self) -> int:
        """The last finished step."""
        return int(self.trainer.state.global_step) // self.per_rollout_step

    def train(self) -> Done:
        """To the end, or to a stop. Raises `TrainingFailed`, or what the libraries raise."""
        stopped = False
        try:
            self.trainer.train(resume_from_checkpoint=self.plan.resume_from)
            stopped = self.step < self.plan.steps
        except Stopped:
            stopped = True
            if self.step and (self.store is None or not self.store.has(self.step)):
                self.save("stop")
        return Done(step=self.step, stopped=stopped)

    def save(self, kind: Kind) -> None:
        """A checkpoint of the weights as they are now."""
        step = self.step
        draft = self.ranks.share(lambda: str(self.store.draft(step)) if self.store else "")
        written = self.trainer.write_checkpoint(draft)
        self.ranks.meet()
        if self.store is not None and self.service is not None and self.collector is not None:
            # A pickle, which resuming does not read: nobody should be asked to load one.
            (written / "training_args.bin").unlink(missing_ok=True)
            self.service.emit(self.store.finish(written, step, kind, self.collector.reward_of(step)))
            Path(draft).rmdir()

    def save_adapter(self, folder: Path) -> None:
        """The adapter alone, as others load it."""
        self.trainer.accelerator.unwrap_model(self.trainer.model).save_pretrained(folder)

    def rollout(self, prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        """TRL's `rollout_func`: this rank's share of the step's sequences."""
        step = trainer.state.global_step // self.per_rollout_step + 1
        collector = self.collector
        every = self.ranks.share(lambda: collector.train(step) if collector else [])
        order = [row for rank in self.ranks.gather(prompts) for row in rank]
        mine = _share_of(order, len(prompts), self.ranks.number, every, self.plan)
        # The random state of an update depends on seed and step alone, not on what was sampled before it.
        torch.manual_seed(_seed(self.plan.seed, step))
        end = self.loaded.tokenizer.eos_token_id
        rows = [_as_trl(one, end) for one in mine]
        names = ("prompt_ids", "completion_ids", "logprobs", "env_mask", "given_reward")
        return {name: [row[at] for row in rows] for at, name in enumerate(names)}

    def _grpo(self) -> Any:
        plan = self.plan
        per_step = plan.rows_per_step * plan.samples_per_row
        arguments = GRPOConfig(
            **self._common(per_step),
            max_steps=plan.steps * plan.num_iterations,
            num_generations=plan.samples_per_row,
            steps_per_generation=plan.gradient_accumulation,
            num_iterations=plan.num_iterations,
            shuffle_dataset=False,
            max_completion_length=plan.max_response_length,
            mask_truncated_completions=False,
            temperature=plan.temperature,
            loss_type=plan.loss,
            beta=plan.kl,
            epsilon=plan.clip,
            epsilon_high=plan.clip_high,
            delta=None,
            importance_sampling_level="token",
            scale_rewards="none" if plan.loss == "dr_grpo" else plan.scale_rewards,
            disable_dropout=True,
            use_vllm=False,
            log_completions=False,
        )
        rows = [
            {"prompt": str(row)}
            for step in range(1, plan.steps + 1)
            for row in rows_of_step(plan.rows, plan.rows_per_step, step, plan.seed)
        ]
        trainer = _Grpo(
            model=self.loaded.model,
            args=arguments,
            processing_class=self.loaded.tokenizer,
            reward_funcs=_given_reward,
            train_dataset=Dataset.from_list(rows),
            peft_config=self._lora(),
            rollout_func=self.rollout,
        )
        trainer.server_samples = plan.sampler == "vllm"
        return trainer

    def _sft(self) -> Any:
        plan = self.plan
        examples = read_examples(plan, self.loaded.tokenizer, self.service)
        order = [
            at
            for step in range(1, plan.steps + 1)
            for at in rows_of_step(range(len(examples)), plan.rows_per_step, step, plan.seed)
        ]
        arguments = SFTConfig(
            **self._common(plan.rows_per_step),
            max_steps=plan.steps,
            packing=False,
            max_length=None,
            completion_only_loss=None,
            assistant_only_loss=False,
            loss_type="nll",
            dataset_kwargs={"skip_prepare_dataset": True},
        )
        return _Sft(
            model=self.loaded.model,
            args=arguments,
            processing_class=self.loaded.tokenizer,
            train_dataset=Dataset.from_list(examples).select(order),
            peft_config=self._lora(),
        )

    def _common(self, per_step: int) -> dict[str, Any]:
        plan, on_cpu = self.plan, self.loaded.device.type == "cpu"
        constant = "constant_with_warmup" if plan.warmup_steps else "constant"
        return {
            "output_dir": plan.output_dir,
            "per_device_train_batch_size": per_step // (plan.gradient_accumulation * plan.processes),
            "gradient_accumulation_steps": plan.gradient_accumulation,
            "learning_rate": plan.lr,
            "lr_scheduler_type": constant if plan.schedule == "constant" else plan.schedule,
            "warmup_steps": plan.warmup_steps,
            "weight_decay": plan.weight_decay,
            "max_grad_norm": plan.max_grad_norm,
            "optim": "adamw_torch",
            "adam_beta1": _BETAS[0],
            "adam_beta2": _BETAS[1],
            "adam_epsilon": _EPSILON,
            "gradient_checkpointing": plan.gradient_checkpointing,
            "gradient_checkpointing_kwargs": {"use_reentrant": False},
            "bf16": self.loaded.dtype == torch.bfloat16,
            "fp16": False,
            "use_cpu": on_cpu,
            "seed": plan.seed,
            "data_seed": plan.seed,
            "dataloader_pin_memory": not on_cpu,
            "dataloader_num_workers": 0,
            "remove_unused_columns": False,
            "save_strategy": "no",
            "save_total_limit": None,
            "logging_strategy": "steps",
            "logging_steps": 1,
            "logging_nan_inf_filter": False,
            "eval_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
            "push_to_hub": False,
            **(
                {"ddp_backend": "gloo" if on_cpu else "nccl", "ddp_find_unused_parameters": False}
                if plan.processes > 1
                else {}
            ),
        }

    def _lora(self) -> Any:
        plan = self.plan
        return LoraConfig(
            r=plan.lora_rank,
            lora_alpha=plan.lora_alpha,
            lora_dropout=0.0,
            bias="none",
            target_modules=plan.lora_targets or "all-linear",
            task_type="CAUSAL_LM",
        )


class _Checkpoints:
    """Lets `transformers.Trainer` write a checkpoint where it is told to."""

    _into: str | None = None

    def write_checkpoint(self, folder: str) -> Path:
        self._into = folder
        # Of `Trainer`, not of TRL's classes: those also write a model card.
        Trainer._save_checkpoint(self, self.model, None)  # type: ignore[attr-defined]  # the trainer's
        return Path(folder) / f"checkpoint-{self.state.global_step}"  # type: ignore[attr-defined]  # the trainer's

    def _get_output_dir(self, trial: object) -> str:
        return self._into or str(self.args.output_dir)  # type: ignore[attr-defined]  # the trainer's


class _Grpo(_Checkpoints, GRPOTrainer):  # type: ignore[misc]  # TRL has no types
    """`server_samples`: another program sampled, in its own arithmetic, so its log-probabilities are what the ratio of
    the loss is taken to. TRL itself takes its own again, as if every sample were exactly on policy."""

    server_samples = False

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        made = super()._generate_and_score_completions(inputs)
        if self.server_samples:
            made["old_per_token_logps"] = made["sampling_per_token_logps"]
        return made


class _Sft(_Checkpoints, SFTTrainer):  # type: ignore[misc]  # TRL has no types
    def _get_train_sampler(self, dataset: Any = None) -> Any:
        return SequentialSampler(dataset if dataset is not None else self.train_dataset)


class _Course(TrainerCallback):  # type: ignore[misc]  # TRL has no types
    """What happens around the optimizer's steps."""

    def __init__(self, engine: TrlEngine) -> None:
        self._engine = engine
        self._save: Kind | None = None
        self._logged: dict[str, list[float]] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._engine.ranks.check(self._engine.plan.processes)
        collector = self._engine.collector
        if self._engine.publish is not None:
            self._engine.publish(self._engine.step)
        if collector is not None and state.global_step == 0:
            collector.validate(0)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._engine.plan.method == "sft" and self._engine.collector is not None:
            self._engine.collector.begin_update()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        engine = self._engine
        norms = [p.grad.norm() for p in engine.trainer.model.parameters() if p.grad is not None]
        if norms and not math.isfinite(float(torch.stack(norms).sum())):
            raise TrainingFailed(
                f"the gradient of step {engine.step + 1} is not finite: training diverged",
                kind="diverged",
                hint='resume from the last checkpoint with a lower lr, more warm-up or precision = "fp32"',
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        engine = self._engine
        if state.global_step % engine.per_rollout_step:
            return
        step, plan = engine.step, engine.plan
        collector = engine.collector
        if collector is not None:
            if engine.publish is not None:
                engine.publish(step)
            collector.updated()
            if collector.wants_validation(step):
                collector.validate(step)
        stop = engine.ranks.share(lambda: bool(engine.service and engine.service.stop_requested.is_set()))
        if step == plan.steps:
            self._save = "final"
        elif stop:
            self._save = "stop"
            control.should_training_stop = True
        elif step % plan.save_interval == 0:
            self._save = "regular"

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """After `on_step_end`; the figures of all optimizer steps of a rollout step are averaged."""
        engine, logs = self._engine, logs or {}
        if "loss" not in logs:
            return  # the summary at the end
        for theirs, ours in _KEYS.items():
            if isinstance(logs.get(theirs), (int, float)):
                self._logged.setdefault(ours, []).append(float(logs[theirs]))
        if state.global_step % engine.per_rollout_step:
            return
        values = {key: sum(found) / len(found) for key, found in self._logged.items()}
        self._logged.clear()
        if engine.collector is not None and engine.service is not None:
            engine.service.health.peak_memory_bytes = peak_memory(engine.loaded.device)
            engine.collector.report(engine.step, values)
        if not math.isfinite(values.get("train/loss", 0.0)):
            raise TrainingFailed(f"the loss of step {engine.step} is not finite: training diverged", kind="diverged")
        if self._save is not None:
            kind, self._save = self._save, None
            engine.save(kind)


def _given_reward(
    prompts: object, completions: object, given_reward: list[float | None], **_: object
) -> list[float | None]:
    """TRL's reward function: what the job said; None keeps a sample out of its group's statistics."""
    return given_reward


def _as_trl(one: Sequence | None, end: int) -> tuple[list[int], list[int], list[float], list[int], float | None]:
    if one is None or len(one.token_ids) == one.prompt_length or not one.prompt_length:
        return [end], [end], [0.0], [0], None
    prompt, rest = one.token_ids[: one.prompt_length], one.token_ids[one.prompt_length :]
    # What has no reward has no advantage; without a mask its tokens are not counted either.
    mask = list(one.mask) if one.reward is not None else [0] * len(rest)
    return prompt, rest, list(one.logprobs), mask, one.reward


def _share_of(
    order: list[str], length: int, rank: int, every: list[Sequence | None], plan: TrainerPlan
) -> list[Sequence | None]:
    """The sequences of one rank: its part of the order in which TRL asks, attempts counted row by row."""
    rows = list(dict.fromkeys(order))
    found = {
        row: iter(every[at * plan.samples_per_row : (at + 1) * plan.samples_per_row]) for at, row in enumerate(rows)
    }
    if set(Counter(order).values()) != {plan.samples_per_row}:
        raise RuntimeError("TRL asked for another number of samples per row than the plan has")
    return [next(found[row]) for row in order][rank * length : (rank + 1) * length]


def _seed(seed: int, step: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}/{step}".encode(), digest_size=6).digest(), "little")
