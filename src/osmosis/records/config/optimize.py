from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field
from pydantic_core import InitErrorDetails

from osmosis.errors import ValidationError
from osmosis.records.config.advanced import RolloutFile
from osmosis.records.config.experiment import Name
from osmosis.records.config.run_config import EvalConfig, get_table
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

    def check_size(self, rows: int, attempts: int) -> None:
        """Raise ValidationError when one new candidate and the comparison need more rows or rollouts."""
        least = self.validation_rows + self.test_rows + self.minibatch
        if rows < least:
            problem = f"the dataset has {rows} different rows, fewer than validation_rows + test_rows + minibatch"
            raise ValidationError(problem, hint=f"[optimize] validation_rows = {rows // 4}, test_rows = {rows // 2}")
        if (least := 2 * attempts * least) > self.max_rollouts:
            problem = f"max_rollouts = {self.max_rollouts} is too few for one new candidate and the comparison"
            raise ValidationError(problem, hint=f"[optimize] max_rollouts = {least}, or fewer rows")


_NOT_OPTIMIZED = {"evaluation": ("limit", "held_out_of", "max_cost", "max_tokens_total"), "export": ("targets",)}


class OptimizeConfig(EvalConfig):
    """`configs/optimize/*.toml`: an evaluation whose texts are improved."""

    kind: ClassVar[str] = "optimize"
    optimize: Optimize

    @classmethod
    def across(cls, written: dict[str, object]) -> Iterator[InitErrorDetails]:
        yield from super().across(written)
        if get_table(written, "advanced").get("shards", 1) != 1:
            yield broken_at("a search is one job", "remove it", "advanced", "shards")
        for table, keys in _NOT_OPTIMIZED.items():
            for key in set(keys).intersection(get_table(written, table)):
                yield broken_at(f"{key} has no effect here", "remove it; limits are in [optimize]", table, key)
