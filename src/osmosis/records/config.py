"""The TOML configs of a workspace, as types: `configs/eval/*.toml` and `configs/training/*.toml`.

The same classes check a file before submit, a request on the platform and the plan of a job. Reading TOML and
naming lines is `workspace.config`; here is only what a config may say.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, StringConstraints, field_validator, model_validator

from .base import Record, Strict

ENV_NAME = re.compile(r"^[A-Z_][A-Z0-9_]*\Z")
SECRET_NAME = re.compile(r"^[A-Z][A-Z0-9_]*\Z")
COMMIT = re.compile(r"^[0-9a-fA-F]{7,40}\Z")
RESERVED_ENV = "_OSMOSIS_"

Name = Annotated[str, StringConstraints(min_length=1, strip_whitespace=False)]


class Experiment(Strict):
    """`[experiment]`: what runs."""

    rollout: Name
    """Rollout directory under `rollouts/`."""
    entrypoint: Name
    """Python entrypoint, relative to the rollout directory."""
    model_path: Name
    """Eval: LiteLLM-style model name, or `offline/calculator`. Training: a Hugging Face base model."""
    dataset: Name
    """Platform dataset name, see `osmosis dataset list`."""
    branch: str | None = None
    """Run the latest synced commit of this branch; not together with `commit_sha`."""
    commit_sha: str | None = None
    """Pin the code to a commit (7 to 40 hex digits); default: latest synced commit of the default branch."""

    @field_validator("rollout")
    @classmethod
    def _one_segment(cls, value: str) -> str:
        if value in (".", "..") or "/" in value or "\\" in value:
            raise ValueError("must be one directory name under rollouts/")
        return value

    @field_validator("entrypoint")
    @classmethod
    def _inside(cls, value: str) -> str:
        parts = value.replace("\\", "/").split("/")
        if value.startswith("/") or ".." in parts:
            raise ValueError("must stay inside the rollout directory")
        return value

    @field_validator("branch")
    @classmethod
    def _branch(cls, value: str | None) -> str | None:
        if value is not None and (not value or re.search(r"\s", value)):
            raise ValueError("must be a branch name without whitespace")
        return value

    @field_validator("commit_sha")
    @classmethod
    def _sha(cls, value: str | None) -> str | None:
        if value is not None and not COMMIT.match(value):
            raise ValueError("must be 7 to 40 hexadecimal digits")
        return value

    @model_validator(mode="after")
    def _one_pin(self) -> Experiment:
        if self.branch and self.commit_sha:
            raise ValueError("branch and commit_sha exclude each other: keep one")
        return self


class Evaluation(Strict):
    """`[evaluation]`: how much runs, and what passes."""

    limit: int | None = Field(default=None, ge=1)
    """First N rows; omitted: a random 10 % sample on the platform, all rows locally."""
    n: int = Field(default=1, ge=1, le=1000)
    """Evaluation attempts per row."""
    batch_size: int = Field(default=1, ge=1, le=4096)
    """Rollouts in flight at once."""
    pass_threshold: float = 1.0
    """Score at or above which a rollout counts as passed."""
    agent_workflow_timeout_s: float = Field(default=450.0, gt=0)
    """Seconds for the agent, per rollout."""
    grader_timeout_s: float = Field(default=150.0, gt=0)
    """Seconds for the grader, per rollout."""


class Training(Strict):
    """`[training]`: the optimisation."""

    lr: float = Field(default=1e-6, gt=0, le=1)
    """Learning rate."""
    total_epochs: int = Field(default=1, ge=1)
    """Passes over the dataset."""
    n_samples_per_prompt: int = Field(default=8, ge=1)
    """Rollouts per prompt (the GRPO group)."""
    rollout_batch_size: int = Field(default=32, ge=1)
    """Prompts per step."""
    max_prompt_length: int = Field(default=8192, ge=1)
    """Tokens."""
    max_response_length: int = Field(default=8192, ge=1)
    """Tokens."""
    agent_workflow_timeout_s: float = Field(default=450.0, gt=0)
    """Seconds for the agent, per rollout."""
    grader_timeout_s: float = Field(default=150.0, gt=0)
    """Seconds for the grader, per rollout."""


class Sampling(Strict):
    """`[sampling]`: how the policy is sampled while training."""

    rollout_temperature: float = Field(default=1.0, ge=0, le=2)
    """Sampling temperature."""
    rollout_top_p: float = Field(default=1.0, gt=0, le=1)
    """Top-p threshold."""


class Checkpoints(Strict):
    """`[checkpoints]`: when to evaluate and save."""

    eval_interval: int = Field(default=10, ge=1)
    """Evaluate every N rollout steps."""
    checkpoint_save_freq: int = Field(default=20, ge=1)
    """Save a LoRA checkpoint every N rollout steps."""


class Secrets(Strict):
    """`[secrets]`: names of secrets, never values."""

    required: list[str]
    """Names registered with `osmosis secret set`; each arrives as an environment variable of that name."""

    @field_validator("required")
    @classmethod
    def _names(cls, value: list[str]) -> list[str]:
        for name in value:
            if not SECRET_NAME.match(name):
                raise ValueError(f"{name!r} is not a secret name: use capitals, digits and _, starting with a letter")
        doubled = sorted({n for n in value if value.count(n) > 1})
        if doubled:
            raise ValueError(f"named twice: {', '.join(doubled)}")
        return value


class Advanced(Record):
    """`[advanced]`: passed through as it stands; the keys below are the ones this platform reads."""

    model_config = ConfigDict(extra="allow")

    base_url: str | None = None
    """Eval: an OpenAI-compatible endpoint to ask instead of a provider; the model name goes verbatim."""
    api_key_env: str | None = None
    """Eval: the variable (a required secret) that holds that endpoint's key."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Eval: further sampling parameters (temperature, top_p, max_tokens, seed, ...)."""


class _Config(Strict):
    experiment: Experiment
    advanced: Advanced = Field(default_factory=Advanced)
    env: dict[str, str] = Field(default_factory=dict)
    """Non-secret environment variables of the rollout."""

    @field_validator("env")
    @classmethod
    def _env_names(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not ENV_NAME.match(name):
                raise ValueError(f"{name!r} is not a variable name: use capitals, digits and _")
            if name.startswith(RESERVED_ENV):
                raise ValueError(f"{name!r} is reserved: names starting with {RESERVED_ENV} belong to the platform")
        return value

    def secret_names(self) -> list[str]:
        """The required secrets, empty when there is no table."""
        secrets: Secrets | None = getattr(self, "secrets", None)
        return list(secrets.required) if secrets else []

    @model_validator(mode="after")
    def _no_overlap(self) -> _Config:
        both = sorted(set(self.env) & set(self.secret_names()))
        if both:
            raise ValueError(f"in [env] and in [secrets].required at once: {', '.join(both)}")
        return self


class EvalConfig(_Config):
    """`configs/eval/*.toml`. `[secrets]` is mandatory; write `required = []` when there is none."""

    kind: ClassVar[str] = "eval"
    evaluation: Evaluation = Field(default_factory=Evaluation)
    secrets: Secrets


class TrainingConfig(_Config):
    """`configs/training/*.toml`."""

    kind: ClassVar[str] = "training"
    training: Training = Field(default_factory=Training)
    sampling: Sampling = Field(default_factory=Sampling)
    checkpoints: Checkpoints = Field(default_factory=Checkpoints)
    secrets: Secrets | None = None
