"""`[advanced]` of a config. Of unknown keys, in files of other versions, the command line warns; a run refuses them."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, field_validator, model_validator
from pydantic_core import InitErrorDetails

from osmosis.base.jsonable import JsonObject
from osmosis.base.net import is_http
from osmosis.records.base import Table, broken_at
from osmosis.records.config.worker import ResourceNeeds
from osmosis.records.run.rollout import Category
from osmosis.records.sandbox import SandboxKind

RolloutNetwork = Literal["open", "gate"]


class Advanced(Table):
    """The keys that every kind of config has."""

    model_config = ConfigDict(extra="allow")

    base_url: str | None = None
    api_key_env: str | None = None
    network: RolloutNetwork = "open"
    """The network of rollouts on the platform: `open` includes outside hosts, `gate` is only their model endpoint."""
    sandbox: SandboxKind = "auto"
    """How to isolate code that rollouts run through `ctx.sandbox`: `bubblewrap`, `container`, or `none`."""
    sandbox_image: str | None = Field(default=None, min_length=1, examples=["python:3.12-slim"])
    """Container image, already on the machine. If `sandbox` is not set, an image selects `container`."""

    resources: ResourceNeeds = Field(default_factory=ResourceNeeds)
    """The needs of a job: `cpus`, `memory`, `gpus`, `disk`, `wall_s`, `labels`; only workers with these take the
    run."""
    priority: int = Field(default=0, ge=-100, le=100, examples=[10])
    """The waiting run of the workspace with the highest priority starts first."""

    @field_validator("base_url")
    @classmethod
    def _http(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://")
        return value

    @classmethod
    def unread(cls, written: object) -> Iterator[InitErrorDetails]:
        """Return the unknown keys of an `[advanced]` table, each with the known key that is probably meant."""
        for key in written if isinstance(written, Mapping) else ():
            if key in cls.model_fields:
                continue
            near = next(iter(get_close_matches(key, cls.model_fields, 1, 0.6)), None)
            other = next((kind for kind, table in TABLES.items() if table is not cls and key in table.model_fields), "")
            fix = f"did you mean {near}?" if near else f"known keys: {', '.join(cls.model_fields)}"
            if other:
                fix = f"remove it: {key} belongs in {other} configs"
            nearest = f"advanced.{near}" if near and not other else None
            yield broken_at(f"unknown key {key} in [advanced]", fix, "advanced", key, code="unknown-key", near=nearest)


class EvalAdvanced(Advanced):
    """`[advanced]` of an eval config: how to reach and call the model."""

    base_url: str | None = Field(default=None, examples=["http://127.0.0.1:8000/v1"])
    """An OpenAI-compatible endpoint to use instead of a provider; the model name is sent unchanged."""
    api_key_env: str | None = Field(default=None, examples=["OPENAI_API_KEY"])
    """The required secret with that endpoint's API key."""
    shards: Annotated[int, Field(ge=1, le=1000)] | Literal["auto"] = Field(default=1, examples=[4])
    """Number of jobs that share the rows, for workers on several machines; `auto`: as many as there is room for."""
    params: JsonObject = Field(default_factory=dict)
    """More sampling parameters (temperature, top_p, max_tokens, seed, ...)."""


def _server_url(value: str) -> str:
    if not is_http(value):
        raise ValueError("must be the http:// or https:// URL of a rollout server")
    return value.rstrip("/")


def _inside(value: str) -> str:
    if value.startswith("/") or ".." in value.replace("\\", "/").split("/"):
        raise ValueError("must stay inside the rollout directory")
    return value


RolloutFile = Annotated[str, StringConstraints(min_length=1), AfterValidator(_inside)]
"""A file of the rollout, relative to its directory."""
ServerUrls = Annotated[list[Annotated[str, AfterValidator(_server_url)]], Field(min_length=1, max_length=256)]
LocalServers = Annotated[int, Field(ge=1, le=64)]
Engine = Literal["local", "tinker"]
SamplerName = Literal["builtin", "vllm"]
GpuCount = Annotated[int, Field(ge=1)] | Literal["auto"]
Method = Literal["grpo", "sft", "dpo"]
Loss = Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rejection", "distill"]
Tune = Literal["lora", "full"]
Importance = Literal["auto", "off", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
FAILURES_OF_POLICIES = (Category.CONTEXT_LENGTH, Category.TIMEOUT, Category.BUDGET, Category.AGENT_ERROR)
"""Failures that an agent's own answers can cause; everything else is the fault of something around it."""
Scale = Literal["group", "batch", "none"]
Schedule = Literal["constant", "linear", "cosine"]
Precision = Literal["auto", "fp32", "bf16"]


class TrainingAdvanced(Advanced):
    """`[advanced]` of a training config: method, adapter, loss, schedule, and what trains."""

    @model_validator(mode="before")
    @classmethod
    def _older_spelling(cls, written: object) -> object:
        if isinstance(written, Mapping) and written.get("engine") == "trl":
            return {**written, "engine": "local"}
        return written

    engine: Engine = "local"
    """`local` trains on the platform's machine; `tinker` sends every step to a Tinker server at `base_url`."""
    sampler: SamplerName = "builtin"
    """`builtin` samples in the trainer itself; `vllm` uses vLLM servers, with each step's adapter: those that the job
    starts, or one at `base_url`."""
    base_url: str | None = Field(default=None, examples=["http://127.0.0.1:8000"])
    """The address of a Tinker server, or of a vLLM server that is there already."""
    samplers: int = Field(default=1, ge=1, le=64, examples=[2])
    """How many vLLM servers the job starts; each gets an equal share of `sampler_gpus`, as tensor parallel ranks."""
    max_requests: int = Field(default=256, ge=1, examples=[512])
    """Most answers that are sampled at once, by all samplers; further requests wait."""
    api_key_env: str | None = Field(default=None, examples=["TINKER_API_KEY"])
    """The required secret with that server's API key. Rollouts do not get it."""
    tokenizer: str | None = Field(default=None, min_length=1, examples=["Qwen/Qwen3-8B"])
    """With `engine = "tinker"`: the source of the tokenizer and chat template: a base model on the platform, a hub name
    or a folder. Default: `model_path`, as a hub name."""
    method: Method = "grpo"
    """`grpo` learns from the scores of new rollouts, `sft` from the passed rollouts of an earlier run, `dpo` from what
    makes those better than the others of their row."""
    from_run: str | None = Field(default=None, min_length=1, examples=["multiply-1"])
    """With `method = "sft"` or `"dpo"`: the run here to learn from; `training/NAME` if an evaluation has that name,
    too."""
    min_score: float | None = Field(default=None, examples=[1.0])
    """With `method = "sft"` or `"dpo"`: lowest score of the rollouts to imitate, or to prefer. Default: that run's
    pass_threshold."""
    pairs_per_row: int = Field(default=4, ge=1, le=1000)
    """With `method = "dpo"`: most pairs of a preferred and another rollout of the same row."""
    beta: float = Field(default=0.1, gt=0)
    """With `method = "dpo"`: the larger, the closer the model stays to the base model."""
    max_steps: int | None = Field(default=None, ge=1, examples=[100])
    """Stop after N steps, even if the epochs are not complete."""
    validation_rows: int | None = Field(default=None, ge=0, examples=[32])
    """Rows held out of training for validation. Default: a tenth of the dataset, at most 32; 0 turns validation off."""
    test_rows: int = Field(default=0, ge=0, examples=[100])
    """Rows that the run never sees, for `osmosis eval submit --held-out-of RUN`."""
    validation_samples: int = Field(default=1, ge=1, le=64)
    """Rollouts per held-out row at each validation."""
    sealed: RolloutFile | None = Field(default=None, examples=["sealed.py"])
    """Python file of the rollout with a second `Grader`, which scores validation rollouts in its own process: never
    trained on, and without a say in which checkpoint is the best."""
    rollout_servers: LocalServers | ServerUrls = Field(default=1, examples=[4])
    """Rollout servers that share a step's rollouts: how many to start on the job's machine, or the URLs of servers that
    `osmosis serve` has started elsewhere."""
    rollout_server_key_env: str | None = Field(default=None, examples=["ROLLOUT_SERVER_KEY"])
    """With URLs in `rollout_servers`: the required secret with the API key of those servers. Rollouts do not get it."""
    chat_template_kwargs: JsonObject = Field(default_factory=dict, examples=[{"enable_thinking": False}])
    """Variables of the model's chat template, such as `enable_thinking`."""
    tune: Tune = "lora"
    """The weights that learn: `lora` an adapter, `full` every weight of the model, in fp32 and with the builtin
    sampler."""
    shard: bool = False
    """Divide the base model's weights between the trainer's GPUs, for models that do not fit one; with
    `sampler = "vllm"`."""
    quantize: Literal["4bit"] | None = Field(default=None, examples=["4bit"])
    """Hold the frozen base model in 4 bits (NF4) while the adapter learns: less than half of the memory, more time.
    Servers, evaluations and merged models have the weights as they are."""
    trainer_gpus: GpuCount = Field(default="auto", examples=[4])
    """GPUs that the trainer uses, the first ones that the job has. `auto`: all but those of the samplers."""
    sampler_gpus: GpuCount = Field(default="auto", examples=[4])
    """GPUs of the vLLM servers that the job starts, the next ones. `auto`: half of the job's, or the rest beside
    `trainer_gpus`. A single GPU is shared with the trainer."""
    lora_rank: int = Field(default=32, ge=1, le=512)
    """Rank of the adapter's matrices."""
    lora_alpha: int = Field(default=64, ge=1, le=4096)
    """The adapter is scaled by `lora_alpha / lora_rank`. Its dropout is always 0."""
    lora_targets: list[str] = Field(default_factory=lambda: ["all-linear"], min_length=1, examples=[["all-linear"]])
    """Modules with an adapter, such as `["q_proj", "v_proj"]`; `["all-linear"]` is every linear layer but the head."""
    loss: Loss = "dapo"
    """How to add up token losses: `grpo` per rollout, `dapo` per token of the batch, `dr_grpo` per token budget; `gspo`
    is `grpo` with one ratio per sequence, `cispo` is `dapo` with the ratio as a bounded weight.
    `rejection` is cross entropy on the rollouts above their row's mean reward, `distill` follows a `teacher` instead of
    rewards."""
    teacher: str | None = Field(default=None, min_length=1, examples=["Qwen/Qwen3-8B"])
    """With `loss = "distill"`: a base model with the same tokenizer, of the platform, a hub name or a folder."""
    scale_rewards: Scale = "group"
    """Divide advantages by the standard deviation of the row's rewards, of the whole batch's rewards, or not at all."""
    kl: float = Field(default=0.0, ge=0)
    """Weight of the KL penalty against the base model; 0 saves its forward pass."""
    clip: float = Field(default=0.2, gt=0, lt=1)
    """How far below 1 the probability ratio of a token counts."""
    clip_high: float = Field(default=0.28, gt=0)
    """How far above 1 the probability ratio of a token counts."""
    ratio_max: float | None = Field(default=None, gt=1, examples=[3.0])
    """Two-sided clip: largest ratio of a token with a negative advantage. Default: no bound."""
    importance: Importance = "auto"
    """Weigh tokens by how likely the trainer finds them compared with the sampler, each or by sequence; beyond
    `importance_cap` the weight is truncated or 0. `auto`: `token_truncate`, and `off` if the trainer itself samples and
    `max_staleness` is 0."""
    importance_cap: float = Field(default=2.0, gt=0)
    """Largest importance weight."""
    failures: dict[str, float] = Field(default_factory=dict, examples=[{"context_length": 0.0}])
    """Rewards of failures that the model's own answers cause: `context_length`, `timeout`, `budget`, `agent_error`.
    Default: a failed rollout has no reward and teaches nothing."""
    max_staleness: int = Field(default=1, ge=0, le=8, examples=[0])
    """Begin the rollouts of so many later steps while a step is trained on; `importance` corrects for it. 0 keeps every
    rollout on policy."""
    oversample: float = Field(default=1.0, ge=1, le=4, examples=[1.25])
    """Run so many times the rows that a step needs; it begins when enough of them have ended, and the others count for
    the next one. These may be one update older than `max_staleness` says."""
    replace_no_signal: int = Field(default=0, ge=0, le=4096, examples=[16])
    """Run up to so many more rows in a step, in place of rows whose rollouts all have the same reward."""
    straggler_timeout_s: float | None = Field(default=None, gt=0, examples=[60.0])
    """Once nine in ten of a step's rollouts have ended, cut the others off after so many seconds, as a timeout.
    Default: they have all of `agent_workflow_timeout_s`."""
    curriculum: bool = False
    """Rows whose rollouts all had the same reward come half as often, then a quarter, then an eighth as often, until
    one teaches something again."""
    num_iterations: int = Field(default=1, ge=1, le=16)
    """Updates per step, all with the step's rollouts."""
    schedule: Schedule = "constant"
    """How the learning rate changes after the warm-up."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises from 0."""
    precision: Precision = "auto"
    """`auto` is bf16 on a GPU that supports it, else fp32."""
    gradient_accumulation: int | None = Field(default=None, ge=1, examples=[8])
    """Least number of parts in which a step's rollouts are trained on; the result is the same. Default: by memory."""
    micro_batch_tokens: int | None = Field(default=None, ge=1, examples=[16384])
    """Most tokens that go through the model at once. Default: by memory."""
    gradient_checkpointing: bool | Literal["auto"] = "auto"
    """Compute activations twice instead of keeping them: less memory, about a third more time per update. `auto`: only
    where memory is short."""
    seed: int = Field(default=42, ge=0, le=2**31 - 1)
    """Seed of the adapter, the order of rows, the held-out rows and the sampler."""

    @classmethod
    def across(cls, written: dict[str, object]) -> Iterator[InitErrorDetails]:
        engine, method = written.get("engine", "local"), written.get("method", "grpo")
        sampler_engine = "tinker" if engine == "tinker" or written.get("sampler") == "vllm" else engine
        yield from cls._only(written, sampler_engine, "tinker", 'engine = "tinker" or sampler = "vllm"', _OF_SERVERS)
        yield from cls._only(written, engine, "tinker", 'engine = "tinker"', ("tokenizer",))
        yield from cls._only(written, engine, "local", 'engine = "local"', _OF_LOCAL)
        yield from cls._only(written, method != "grpo", True, 'method = "sft" or "dpo"', ("from_run", "min_score"))
        yield from cls._only(written, method, "dpo", 'method = "dpo"', ("pairs_per_row", "beta"))
        yield from cls._only(written, method, "grpo", 'method = "grpo"', _OF_GRPO)
        if written.get("shard") and written.get("sampler") != "vllm":
            problem = 'shard = true needs sampler = "vllm": the builtin sampler needs all weights in one process'
            yield broken_at(problem, 'write sampler = "vllm", or remove shard', "shard")
        is_whole_adapter = written.get("tune", "lora") == "lora" and not written.get("shard")
        yield from cls._only(written, is_whole_adapter, True, 'tune = "lora" and shard = false', ("quantize",))
        yield from cls._servers(written)
        yield from cls._gpus(written)
        if engine == "tinker" and method != "grpo":
            problem = f'method = "{method}" needs engine = "local"'
            yield broken_at(problem, 'write engine = "local", or imitate with that server\'s own tools', "method")
        loss = written.get("loss")
        yield from cls._only(written, loss, "distill", 'loss = "distill"', ("teacher",))
        if loss == "distill" and not written.get("teacher"):
            yield broken_at("teacher is missing (the model to follow)", 'teacher = "OWNER/NAME"', "teacher")
        clipped = f"another loss than {loss}"
        yield from cls._only(written, loss == "distill", False, clipped, ("scale_rewards",))
        yield from cls._only(written, loss == "rejection", False, clipped, ("clip", "clip_high", "ratio_max"))
        if loss in ("dr_grpo", "rejection") and written.get("scale_rewards") == "batch":
            problem = f'scale_rewards has no effect with loss = "{loss}", which divides by no deviation'
            yield broken_at(problem, "remove scale_rewards", "scale_rewards")
        if engine == "tinker" and not written.get("base_url"):
            yield broken_at("base_url is missing (address of the Tinker server)", 'base_url = "http://..."', "base_url")
        if written.get("tune") == "full" and (engine == "tinker" or written.get("sampler") == "vllm"):
            problem = 'tune = "full" needs the builtin sampler: a server takes adapters'
            yield broken_at(problem, 'remove tune, or write sampler = "builtin"', "tune")
        failures = written.get("failures")
        allowed = [category.value for category in FAILURES_OF_POLICIES]
        for name in sorted(set(failures) - set(allowed)) if isinstance(failures, Mapping) else ():
            problem = f"{name} is not caused by the model's answers, so it is no result"
            yield broken_at(problem, f"keep only {', '.join(allowed)}", "failures")
        if method != "grpo" and not written.get("from_run"):
            problem = "from_run is missing (the run whose rollouts are learned from)"
            yield broken_at(problem, 'from_run = "NAME", as osmosis eval list shows it', "from_run")

    @classmethod
    def _servers(cls, written: Mapping[str, object]) -> Iterator[InitErrorDetails]:
        servers = written.get("rollout_servers", 1)
        if isinstance(servers, list):
            twice = sorted({str(url) for url in servers if servers.count(url) > 1})
            if twice:
                yield broken_at(f"{twice[0]} is listed twice", f"keep one {twice[0]}", "rollout_servers")
        elif written.get("rollout_server_key_env"):
            problem = "rollout_server_key_env has no effect without URLs in rollout_servers"
            yield broken_at(problem, "remove it, or list the URLs", "rollout_server_key_env")
        if written.get("sealed") and isinstance(servers, list):
            problem = "sealed is served on the job's machine, and the rollout servers are elsewhere"
            yield broken_at(problem, "remove sealed, or the URLs in rollout_servers", "sealed")
        if written.get("sealed") and written.get("validation_rows") == 0:
            yield broken_at("sealed has no effect with validation_rows = 0", "remove validation_rows", "sealed")

    @classmethod
    def _gpus(cls, written: Mapping[str, object]) -> Iterator[InitErrorDetails]:
        is_started = written.get("sampler") == "vllm" and not written.get("base_url")
        setting = 'sampler = "vllm" and no base_url'
        yield from cls._only(written, is_started, True, setting, ("samplers", "sampler_gpus"))
        yield from cls._only(written, is_started, False, "base_url", ("api_key_env",))
        samplers, trainer_gpus, sampler_gpus = (
            value if isinstance(value := written.get(key), int) else 0
            for key in ("samplers", "trainer_gpus", "sampler_gpus")
        )
        if samplers and sampler_gpus % samplers:
            problem = f"sampler_gpus cannot be divided among {samplers} samplers"
            yield broken_at(problem, f"write a multiple of {samplers}", "sampler_gpus")
        resources = written.get("resources")
        gpus = resources.get("gpus") if isinstance(resources, Mapping) else None
        if isinstance(gpus, int) and trainer_gpus + sampler_gpus > max(gpus, 2):  # a single one is shared
            problem = f"trainer_gpus and sampler_gpus together are more than the {gpus} GPUs of the job"
            yield broken_at(problem, f"[advanced.resources] gpus = {trainer_gpus + sampler_gpus}", "resources", "gpus")

    @classmethod
    def _only(
        cls, written: Mapping[str, object], is_now: object, needed: object, setting: str, keys: tuple[str, ...]
    ) -> Iterator[InitErrorDetails]:
        for key in keys if is_now != needed else ():
            default = cls.model_fields[key].get_default(call_default_factory=True)
            if key in written and written[key] != default:
                yield broken_at(f"{key} has no effect without {setting}", f"remove {key}, or write {setting}", key)


_OF_SERVERS = ("base_url", "api_key_env")
_OF_LOCAL = (
    "trainer_gpus", "tune", "kl", "clip", "clip_high", "ratio_max", "importance", "importance_cap",
    "micro_batch_tokens", "lora_alpha", "sampler", "precision", "gradient_accumulation", "gradient_checkpointing",
    "lora_targets", "teacher", "quantize",
)  # fmt: skip
_OF_GRPO = (
    "loss", "scale_rewards", "kl", "clip", "clip_high", "ratio_max", "importance", "importance_cap", "failures",
    "max_staleness", "num_iterations", "oversample",
    "replace_no_signal", "straggler_timeout_s", "curriculum",
)  # fmt: skip

TABLES: Mapping[str, type[Advanced]] = {"eval": EvalAdvanced, "training": TrainingAdvanced, "optimize": EvalAdvanced}
