from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field
from pydantic_core import InitErrorDetails

from osmosis.records.config.advanced import RolloutFile
from osmosis.records.config.run_config import EvalConfig, Name, get_table
from osmosis.records.config.validation import Table, broken_at


class Optimize(Table):
    """`[optimize]`: which texts are improved, by which model, within which budget."""

    prompts: list[RolloutFile] = Field(default_factory=list, examples=[["task"]])
    """Prompts to improve, by name: `prompts/NAME.md` of the rollout. Default: all of them, unless `files` has some."""
    files: list[RolloutFile] = Field(default_factory=list, examples=[["instructions.md"]])
    """More text files to improve, relative to the rollout directory."""
    reflection_model: Name = Field(examples=["openai/gpt-5"])
    """Model that reads how rollouts went and proposes texts: a LiteLLM name, `NAME@URL`, or `offline/reflection`."""
    max_rollouts: int = Field(default=500, ge=1)
    """Most rollouts in all, those of the last comparison included."""
    max_cost: float | None = Field(default=None, gt=0, examples=[5.0])
    """Begin nothing that would probably take the cost above this many USD, reflection and judges included."""
    validation_rows: int = Field(default=20, ge=1)
    """Rows on which every candidate is scored."""
    test_rows: int = Field(default=40, ge=1)
    """Rows on which the best candidate is compared with the texts of now. The search never sees them."""
    minibatch: int = Field(default=3, ge=1)
    """Rows that one reflection reads; the other rows of the dataset are drawn for it."""
    seed: int = 0
    """Decides which rows are for what, and every draw of the search."""


_NOT_OPTIMIZED = {
    "experiment": ("branch", "commit_sha"),
    "evaluation": ("limit", "held_out_of", "max_cost", "max_tokens_total"),
    "export": ("targets",),
}


class OptimizeConfig(EvalConfig):
    """`configs/optimize/*.toml`: an evaluation whose texts are improved."""

    kind: ClassVar[str] = "optimize"
    optimize: Optimize

    @classmethod
    def across(cls, written: dict[str, object]) -> Iterator[InitErrorDetails]:
        yield from super().across(written)
        for table, keys in _NOT_OPTIMIZED.items():
            for key in set(keys).intersection(get_table(written, table)):
                yield broken_at(f"{key} has no effect here", "remove it; limits are in [optimize]", table, key)
