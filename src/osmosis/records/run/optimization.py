import difflib
from collections.abc import Iterator
from pathlib import PurePosixPath

from pydantic import Field

from osmosis.base.jsonable import JsonObject
from osmosis.records.base import Record
from osmosis.records.config.advanced import RolloutFile

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
