"""What a serving process is given: a base model, an adapter or none, and how much it may sample at once."""

from __future__ import annotations

from typing import Literal

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
