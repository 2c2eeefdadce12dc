"""How the attempts at a row become one score, by name. What each of them computes is in `metrics.reducers`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

ReducerName = Annotated[str, Field(pattern=r"^(mean|median|mode|max|(at-least-|pass@|pass\^)[1-9][0-9]{0,3})$")]
"""`mean`, `median`, `mode`, `max`, `at-least-K`, `pass@K` or `pass^K`."""
