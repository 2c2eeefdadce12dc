"""What a process that serves or merges a model is given: a base model, an adapter, and what to do with them."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from osmosis.records.base import Record


class ServingPlan(Record):
    """`python -m osmosis.training.trainer.serving PLAN SOCKET` answers `/sample` and `/health` by this."""

    name: str
    """Of the model, for logs."""
    model_path: str
    """Folder of the base model."""
    adapter_path: str | None = None
    """Folder of the adapter; None: the base model itself."""
    max_prompt_length: int | None = Field(default=None, ge=1)
    """Tokens; None: what the model's context leaves beside an answer."""
    max_response_length: int | None = Field(default=None, ge=1)
    """Most tokens of an answer; None: half of the context, at most 8192."""
    concurrency: int = Field(default=256, ge=1)
    """Most requests that are sampled at once."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; None: torch decides."""


class MergePlan(Record):
    """`python -m osmosis.training.trainer.merging PLAN` makes a model of its own of base and adapter by this."""

    model_path: str
    """Folder of the base model."""
    adapter_path: str
    output_dir: str
    """Folder of the new model."""
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    """Of the weights that are saved; `auto`: of the base model's."""
    own_dtype: str = ""
    """Of the base model's files: `float32`, `bfloat16`, `float16`; empty: they do not say."""


class MergeResult(Record):
    """Its answer, in a file beside the plan."""

    FILE: ClassVar[str] = "merged.json"

    dtype: str = ""
    parameters: int = 0
    difference: float = 0.0
    """The largest, of the log-probabilities that both give to a short text."""
    failure: str | None = None
    fix: str | None = None
