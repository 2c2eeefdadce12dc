"""The plan of a training run: everything that decides the result, nothing left to a library's defaults."""

import hashlib
import random
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from osmosis.base.jsonable import JsonObject
from osmosis.records.base import Record
from osmosis.records.config.advanced import Engine, Loss, Method, Precision, SamplerName, Scale, Schedule, Tune
from osmosis.records.run.training import EnvironmentPlan

Importance = Literal["off", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]

_FREE = {
    "resume_from", "steps", "threads", "run", "output_dir", "keep", "model_path", "adapter_path", "teacher_path",
    "examples_path", "engine_url", "sampler_urls", "samplers_sleep", "base_model", "processes", "shard",
    "gradient_accumulation", "micro_batch_tokens", "gradient_checkpointing",
}  # fmt: skip
"""Fields that a resume may change: where things are, how long to go on, how many files to keep, how work is divided."""


class TrainerPlan(Record):
    """One training run. Lengths are in tokens; a field called as a key of `[advanced]` means the same."""

    run: str
    engine: Engine = "local"
    """`tinker`: a Tinker server at `engine_url`, its key in `TINKER_API_KEY`."""
    engine_url: str | None = None
    sampler: SamplerName = "builtin"
    """`vllm`: the servers at `sampler_urls`, given a new adapter after each step; their key is in `VLLM_API_KEY`."""
    sampler_urls: list[str] = Field(default_factory=list)
    samplers_sleep: bool = False
    """They share the trainer's GPU: during updates they give their memory back (vLLM's sleep mode)."""
    method: Method = "grpo"
    model_path: str
    """Folder of the base model: `config.json`, tokenizer, safetensors. For `tinker`, the name the server knows."""
    base_model: str | None = None
    adapter_path: str | None = None  # folder to go on from; it brings its own rank, scale and targets
    teacher_path: str | None = None  # folder of the model that `distill` follows
    tokenizer_path: str | None = None
    chat_template_kwargs: JsonObject = Field(default_factory=dict)
    output_dir: str
    resume_from: str | None = None  # a checkpoint folder to train from; None: the base model

    rows: list[int] = Field(default_factory=list)
    """Indices of the rows to train on (`grpo`). Their order is drawn from `seed` (`rows_of_step`)."""
    validation_rows: list[int] = Field(default_factory=list)
    environments: list[EnvironmentPlan] = Field(default_factory=list)
    """The parts of a mixture; empty: there is a single one."""
    examples_path: str | None = None
    steps: int = Field(ge=1)
    """Rollout steps in all (`grpo`), optimizer steps in all (`sft`, `dpo`); a resumed run ends at the same step."""
    rows_per_step: int = Field(ge=1)
    samples_per_row: int = Field(default=8, ge=1)
    validation_samples: int = Field(default=1, ge=1)
    eval_interval: int = Field(default=10, ge=1)
    """Validate before the first step, every so many steps, and after the last one."""
    save_interval: int = Field(default=20, ge=1)
    keep: int | None = Field(default=None, ge=1)
    """Newest checkpoints to keep, beside the best and the last; None: all."""

    max_prompt_length: int = Field(ge=1)
    max_response_length: int = Field(ge=1)
    """Most tokens of one answer, and of all that follows the first prompt of a rollout."""
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_requests: int = Field(default=256, ge=1)
    cache_tokens: int | None = Field(default=None, ge=1)
    """Size of the key-value cache; None: room for `max_requests` full answers where memory allows it."""

    tune: Tune = "lora"
    quantize: Literal["4bit"] | None = None
    lora_rank: int = Field(default=16, ge=1)
    lora_alpha: float = Field(default=32.0, gt=0)
    lora_targets: list[str] = Field(default_factory=list)
    loss: Loss = "dapo"
    kl: float = Field(default=0.0, ge=0)
    clip: float = Field(default=0.2, gt=0)
    clip_high: float | None = Field(default=None, gt=0)
    """Default (None): the same as `clip`."""
    ratio_max: float | None = Field(default=None, gt=1)
    importance: Importance = "off"
    importance_cap: float = Field(default=2.0, gt=0)
    scale_rewards: Scale = "group"
    beta: float = Field(default=0.1, gt=0)
    max_staleness: int = Field(default=0, ge=0)
    oversample: float = Field(default=1.0, ge=1)
    replace_no_signal: int = Field(default=0, ge=0)
    straggler_timeout_s: float | None = Field(default=None, gt=0)
    curriculum: bool = False
    num_iterations: int = Field(default=1, ge=1)
    lr: float = Field(gt=0, le=1)
    schedule: Schedule = "constant"
    warmup_steps: int = Field(default=0, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    gradient_accumulation: int = Field(default=1, ge=1)
    micro_batch_tokens: int | None = Field(default=None, ge=1)
    gradient_checkpointing: bool | Literal["auto"] = False
    precision: Precision = "auto"
    seed: int = 0
    processes: int = Field(default=1, ge=1)
    shard: bool = False
    threads: int | None = Field(default=None, ge=1)
    max_memory_bytes: int | None = Field(default=None, ge=1)
    """Memory that a base model may take; None: all that the machine has."""

    @model_validator(mode="after")
    def _fits(self) -> "TrainerPlan":
        if self.method == "grpo":
            if self.samples_per_row < 2:
                raise ValueError("samples_per_row must be at least 2: an advantage compares the answers to one row")
        elif not self.examples_path:
            raise ValueError(f"method {self.method} needs examples_path")
        if self.loss == "distill" and not self.teacher_path:
            raise ValueError("loss distill needs teacher_path")
        if self.engine == "tinker" and not self.engine_url:
            raise ValueError("engine tinker needs engine_url")
        if self.tune == "full" and (self.sampler != "builtin" or self.engine != "local"):
            raise ValueError("tune full needs engine local and sampler builtin: servers take adapters")
        if self.quantize and (self.tune == "full" or self.engine != "local" or self.shard):
            raise ValueError("quantize needs engine local, tune lora and no shard")
        return self

    @property
    def is_sharded(self) -> bool:
        return self.shard and self.processes > 1

    @classmethod
    def for_sampling(cls, run: str, model_path: str, **fields: object) -> "TrainerPlan":
        """Return a plan that trains nothing, for what loads and samples a model as a trainer does."""
        unused = {"output_dir": "", "steps": 1, "rows_per_step": 1, "lr": 1e-6}
        return cls.model_validate({"run": run, "model_path": model_path, **unused, **fields})

    @property
    def fingerprint(self) -> str:
        """Return a hash of what decides the result; a checkpoint is resumed only with the same one."""
        unset = set() if self.environments else {"environments"}  # as before there were any
        return hashlib.sha256(self.model_dump_json(exclude=_FREE | unset).encode()).hexdigest()

    @property
    def shares(self) -> list[float]:
        return [environment.share for environment in self.environments] or [1.0]

    def find_environment(self, row: int) -> int:
        return max(0, bisect_right(self.environments, row, key=lambda environment: environment.start) - 1)

    def mean_reward(self, rewards: Iterable[tuple[int, float]]) -> float | None:
        """Return the mean over environments, by their shares, of the mean over the rewards of their rows."""
        groups: dict[int, list[float]] = defaultdict(list)
        for row, reward in rewards:
            groups[self.find_environment(row)].append(reward)
        weights = {at: self.shares[at] / sum(self.shares[other] for other in groups) for at in groups}
        return sum(weights[at] * fmean(group) for at, group in groups.items()) if groups else None

    def rows_of(self, step: int) -> list[int]:
        """Return the rows of a step, drawn from the seed alone; of each environment as `rows_of_step` does."""
        if len(self.environments) < 2:
            return rows_of_step(self.rows, self.rows_per_step, step, self.seed)
        parts = [list(environment.rows) for environment in self.environments]
        sizes, drawn, ends = [len(part) for part in parts], [0] * len(parts), [0] * len(parts)
        counts: list[int] = []
        for _ in range(step):
            counts = divide(self.shares, drawn, sizes, self.rows_per_step)
            for at, count in enumerate(counts):
                drawn[at] += count
                left = -ends[at] % sizes[at]
                ends[at] += count + (left if left < count else 0)
        rows = []
        for at, (part, end, count) in enumerate(zip(parts, ends, counts, strict=True)):
            epoch, begin = divmod(end - count, len(part))
            random.Random(f"{self.seed}/{at}/{epoch}").shuffle(part)
            rows += part[begin : begin + count]
        return rows


class ServingPlan(Record):
    name: str
    model_path: str
    adapter_path: str | None = None
    max_prompt_length: int | None = Field(default=None, ge=1)
    """Tokens; None: what the model's context leaves beside an answer."""
    max_response_length: int | None = Field(default=None, ge=1)  # None: half of the context, at most 8192
    concurrency: int = Field(default=256, ge=1)
    precision: Precision = "auto"
    threads: int | None = Field(default=None, ge=1)


class MergePlan(Record):
    model_path: str
    adapter_path: str
    output_dir: str
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    """Type of the weights that are saved; `auto`: that of the base model's."""
    own_dtype: str = ""
    """Type in the base model's files: `float32`, `bfloat16`, `float16`; empty: they do not say."""


class MergeResult(Record):
    FILE: ClassVar[str] = "merged.json"

    dtype: str = ""
    parameters: int = 0
    difference: float = 0.0
    """Largest difference between the log-probabilities of a short text before and after the merge."""
    failure: str | None = None
    fix: str | None = None


def rows_of_step(rows: Sequence[int], rows_per_step: int, step: int, seed: int) -> list[int]:
    """Return the rows of a step, drawn from the seed alone: each pass is a permutation of its own, cut into steps."""
    epoch, index = divmod(step - 1, len(rows) // rows_per_step)
    order = list(rows)
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order[index * rows_per_step : (index + 1) * rows_per_step]


def divide(shares: Sequence[float], drawn: Sequence[int], room: Sequence[int], count: int) -> list[int]:
    """Return how many of `count` further rows each environment gives: the one furthest behind its share first."""
    counts = [0] * len(shares)
    for total in range(sum(drawn) + 1, sum(drawn) + count + 1):
        free = [at for at, most in enumerate(room) if counts[at] < most]
        if free:
            counts[max(free, key=lambda at: shares[at] * total - drawn[at] - counts[at])] += 1
    return counts
