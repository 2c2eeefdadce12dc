"""The plan of a training run, as the trainer is given it: everything that decides the result, nothing left to the
defaults of a library. What changes without changing the result (the socket, where logs go) is no part of it.
"""

from __future__ import annotations

import hashlib
from typing import Literal

from pydantic import Field, model_validator

from osmosis.records.base import Record

Loss = Literal["grpo", "dr_grpo", "dapo"]
Schedule = Literal["constant", "linear", "cosine"]
Precision = Literal["auto", "fp32", "bf16"]

_FREE = {
    "resume_from",
    "steps",
    "threads",
    "run",
    "output_dir",
    "keep",
    "model_path",
    "examples_path",
    "engine_url",
    "sampler_url",
}
"""Fields that a resume may change: where things are, how long to go on, how many files to keep."""


class TrainerPlan(Record):
    """One training run. Lengths are in tokens, steps are rollout steps (one `collect` each), counted from 1."""

    run: str
    """The run's name, for logs."""
    engine: Literal["trl", "tinker"] = "trl"
    """`trl`: this machine. `tinker`: a Tinker server at `engine_url`; its key is in the environment variable
    `TINKER_API_KEY`."""
    engine_url: str | None = None
    sampler: Literal["builtin", "vllm"] = "builtin"
    """`builtin`: continuous batching over the very module being trained. `vllm`: an OpenAI-compatible vLLM server at
    `sampler_url`, given a new LoRA adapter after each step; its key is in the environment variable `VLLM_API_KEY`."""
    sampler_url: str | None = None
    method: Literal["grpo", "sft"] = "grpo"
    model_path: str
    """Folder of the base model: `config.json`, tokenizer, safetensors. For `tinker`, the name the server knows."""
    tokenizer_path: str | None = None
    """Folder of the tokenizer, when it is not `model_path` (`tinker`)."""
    output_dir: str
    """Checkpoints are written here, in `step-000012/` and so on."""
    resume_from: str | None = None
    """A checkpoint folder: train from there instead of from the base model."""

    rows: list[int] = Field(default_factory=list)
    """Indices of the rows to train on (`grpo`). Their order is drawn from `seed` (`osmosis.training.order`)."""
    validation_rows: list[int] = Field(default_factory=list)
    """Indices of held-out rows; empty: no validation."""
    examples_path: str | None = None
    """`sft`: a file of `Example` lines."""
    steps: int = Field(ge=1)
    """Rollout steps in all (`grpo`), optimizer steps in all (`sft`); a resumed run ends at the same step."""
    rows_per_step: int = Field(ge=1)
    """Rows of a step (`grpo`), examples of a step (`sft`)."""
    samples_per_row: int = Field(default=8, ge=1)
    """The GRPO group."""
    validation_samples: int = Field(default=1, ge=1)
    eval_interval: int = Field(default=10, ge=1)
    """Validate before the first step, every so many steps, and after the last one."""
    save_interval: int = Field(default=20, ge=1)
    keep: int | None = Field(default=None, ge=1)
    """Keep the newest so many checkpoints, beside the best and the last; None: all."""

    max_prompt_length: int = Field(ge=1)
    max_response_length: int = Field(ge=1)
    """Most tokens of one answer, and of all that follows the first prompt of a rollout."""
    temperature: float = Field(default=1.0, ge=0, le=2)
    """Of training rollouts; the loss uses the same one."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    concurrency: int = Field(default=256, ge=1)
    """Most requests that are sampled at once."""
    cache_tokens: int | None = Field(default=None, ge=1)
    """Size of the key-value cache; None: room for `concurrency` full answers where memory allows it."""

    lora_rank: int = Field(default=16, ge=1)
    lora_alpha: float = Field(default=32.0, gt=0)
    lora_targets: list[str] = Field(default_factory=list)
    """Names of modules; empty: every linear layer but the head."""
    loss: Loss = "dapo"
    kl: float = Field(default=0.0, ge=0)
    """Weight of the KL penalty against the base model (beta); 0 leaves out the reference pass too."""
    clip: float = Field(default=0.2, gt=0)
    clip_high: float | None = Field(default=None, gt=0)
    """Upper clip; None: the same as `clip`."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """By which standard deviation advantages are divided; `dr_grpo` divides by none."""
    num_iterations: int = Field(default=1, ge=1)
    """Optimizer steps per collected batch."""
    lr: float = Field(gt=0, le=1)
    schedule: Schedule = "constant"
    warmup_steps: int = Field(default=0, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    gradient_accumulation: int = Field(default=1, ge=1)
    """In how many pieces a batch goes through the model, which bounds memory and changes no result."""
    gradient_checkpointing: bool = False
    precision: Precision = "auto"
    """`auto`: bf16 where the GPU has it, else fp32."""
    seed: int = 0
    processes: int = Field(default=1, ge=1)
    """Data-parallel processes of this machine, one per GPU."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of each process; None: torch decides."""
    max_memory_bytes: int | None = Field(default=None, ge=1)
    """What a base model may take; None: what the machine has."""

    @model_validator(mode="after")
    def _fits(self) -> TrainerPlan:
        if self.method == "grpo":
            per_step = self.rows_per_step * self.samples_per_row
            pieces = self.processes * self.gradient_accumulation
            if self.samples_per_row < 2:
                raise ValueError("samples_per_row must be at least 2: an advantage compares the answers to one row")
            if per_step % pieces:
                raise ValueError(
                    f"a step of {self.rows_per_step} rows x {self.samples_per_row} samples cannot be divided into "
                    f"{self.processes} process(es) x {self.gradient_accumulation} gradient accumulation steps"
                )
        elif not self.examples_path:
            raise ValueError("method sft needs examples_path")
        elif self.rows_per_step % (self.processes * self.gradient_accumulation):
            raise ValueError("rows_per_step cannot be divided into processes x gradient_accumulation")
        if self.engine == "tinker" and not self.engine_url:
            raise ValueError("engine tinker needs engine_url")
        if self.sampler == "vllm" and not self.sampler_url:
            raise ValueError("sampler vllm needs sampler_url")
        return self

    @property
    def fingerprint(self) -> str:
        """Hash of what decides the result: a checkpoint is resumed only by a plan that has the same one."""
        return hashlib.sha256(self.model_dump_json(exclude=_FREE).encode()).hexdigest()
