from typing import Literal

from pydantic import Field

from osmosis.base.jsonable import JsonObject
from osmosis.records.base import Record
from osmosis.records.run.report import Bounds


class Question(Record):
    """A question: is the score of `left` at least that of `right` less the margin?"""

    left: str
    right: str
    margin: float = 0.0
    """Below 0: the score of `left` has to be so much higher."""
    answer: Literal["yes", "no", "undecided"] | None = None
    """Still open without one."""
    reason: str = ""
    rows: int = 0
    difference: float | None = None
    """Left minus right, of the rows at the last look."""
    interval: Bounds | None = None
    """At the level of the last look, once the question is over: the intervals of all questions hold together."""
    p_value: float | None = None
    """Two-sided, of a difference of minus the margin."""

    @property
    def text(self) -> str:
        margin = f" {'-' if self.margin > 0 else '+'} {abs(self.margin):g}" if self.margin else ""
        return f"{self.left} >= {self.right}{margin}"

    @property
    def is_answered(self) -> bool:
        return self.answer in ("yes", "no")


class Stage(Record):
    """One look at all open questions: so many of the first rows, with so many attempts at each in either arm."""

    rows: int = Field(ge=1)
    attempts: int = Field(default=1, ge=1)
    done: bool = False

    @property
    def rollouts(self) -> int:
        return self.rows * self.attempts


class StudyLimits(Record):
    max_cost: float | None = Field(default=None, gt=0)
    """US dollars, all arms together."""
    max_rollouts: int | None = Field(default=None, ge=2)
    """Default: each row once in each arm."""
    limit: int | None = Field(default=None, ge=2)
    """Only the first rows of the dataset."""
    score: str | None = None
    """Score that the questions are about; default: the primary one."""


class Study(Record):
    """Questions about arms of one evaluation, and the looks at which they are asked. The arms' runs have the data."""

    name: str = ""
    questions: list[Question]
    order: list[int] = Field(default_factory=list)
    """Indices of the rows, as they are run."""
    settled: list[int] = Field(default_factory=list)
    """Rows that earlier runs always passed or never: they are run less often than the others, and count more."""
    stages: list[Stage] = Field(default_factory=list)
    """The first is planned before anything is run, the others when it tells what a rollout costs."""
    arms: dict[str, JsonObject] = Field(default_factory=dict)
    """How each arm differs from the config, by name."""
    runs: dict[str, str] = Field(default_factory=dict)
    """Name of the run of each arm; arms that are the same have the same run."""
    limits: StudyLimits = Field(default_factory=StudyLimits)
    facts: JsonObject = Field(default_factory=dict)
    """The command's other options: to go on, it must be typed with the same ones."""
    is_planned: bool = True
    """False until the first rows tell what a rollout costs, and with it how far a budget in USD reaches."""

    @property
    def due(self) -> int | None:
        """Return the number of the next look; None when every question has an answer or no look is left."""
        if not any(question.answer is None for question in self.questions):
            return None
        return next((i for i, stage in enumerate(self.stages) if not stage.done), None)

    @property
    def open_arms(self) -> list[str]:
        names = {name for q in self.questions if q.answer is None for name in (q.left, q.right)}
        return [name for name in self.arms if name in names]

    @property
    def planned_rollouts(self) -> int:
        return len(set(self.runs.values())) * self.stages[-1].rollouts


class StudyRun(Record):
    id: str = ""
    name: str
    url: str = ""
    status: str = ""
    rollouts: int = 0
    failed: int = 0
    cost_usd: float = 0.0


class StudyState(Record):
    """A study as it stands, with its runs."""

    id: str
    url: str
    status: Literal["running", "interrupted", "stopped", "decided"]
    study: Study
    runs: dict[str, list[StudyRun]]
    problem: str = ""
    created_at: str = ""
    workspace: str = ""

    @property
    def spent(self) -> dict[str, float]:
        runs = [run for own in self.runs.values() for run in own]
        return {key: sum(getattr(run, key) for run in runs) for key in ("rollouts", "failed", "cost_usd")}
