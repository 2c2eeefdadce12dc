import difflib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import ClassVar

from pydantic import Field
from pydantic_core import InitErrorDetails

from osmosis.base.jsonable import JsonObject
from osmosis.errors import ValidationError
from osmosis.records.base import Record, Table, broken_at
from osmosis.records.config.advanced import RolloutFile
from osmosis.records.config.experiment import Name
from osmosis.records.config.run_config import EvalConfig, get_table


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
        if written.get("schedule"):
            yield broken_at("a search is not repeated", "remove it", "schedule")
        for table, keys in _NOT_OPTIMIZED.items():
            for key in set(keys).intersection(get_table(written, table)):
                yield broken_at(f"{key} has no effect here", "remove it; limits are in [optimize]", table, key)


SEED = "seed"


class Candidate(Record):
    """Texts that ran on all validation rows."""

    name: str
    step: int
    """The step of its rollouts in a run of the platform, where the test rollouts of the winner have step 0."""
    parent: str | None = None
    validation: float
    """Mean reward on the validation rows."""
    is_pareto: bool = False
    """True when no other candidate is at least as good on every validation row."""
    texts: dict[RolloutFile, str]
    """The files whose text differs from the seed's."""


class Optimization(Record):
    """A search over the texts of a rollout, as far as it came."""

    rollout: RolloutFile
    """Name of the rollout, to whose folder files are relative."""
    seed: dict[RolloutFile, str]
    """Text by file, as the search found them."""
    rows: dict[str, int]
    candidates: list[Candidate]
    stopped: str
    """Why the search ended; empty while it goes on."""
    winner: str
    """The best one on the validation rows, so far."""
    verdict: str | None = None
    """The comparison's, on the test rows; None while there is none."""
    conclusion: str = ""
    comparison: JsonObject | None = None
    diff: str = ""
    max_rollouts: int
    max_cost: float | None = None
    rollouts: int
    reflections: int
    cost_usd: float | None = None
    """Cost of rollouts, judges and reflections; None when a price is unknown."""
    answers: list[JsonObject] = Field(default_factory=list, repr=False)
    """The reflection model's: with the run's rollouts all that another machine needs to go on."""

    @property
    def folder(self) -> PurePosixPath:
        return PurePosixPath("rollouts", self.rollout)

    def texts(self, name: str) -> dict[str, str]:
        return self.seed | next((each.texts for each in self.candidates if each.name == name), {})

    def diff_lines(self, name: str) -> Iterator[str]:
        """Yield the lines of a diff from the seed to a candidate, as `git apply` takes it."""
        for file, after in self.texts(name).items():
            a, b = (f"{side}/{self.folder / file}" for side in "ab")
            lines = [*difflib.unified_diff(self.seed[file].splitlines(True), after.splitlines(True), a, b)]
            for line in [f"diff --git {a} {b}\n", *lines] if lines else ():
                yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
