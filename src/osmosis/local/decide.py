"""Two runs of this machine, extended together until their difference is decided or the planned rollouts are there.

More rows come first, as long as the dataset has some that the runs do not: a row tells most (docs/statistics.md). Then
more attempts, at every row alike: whoever chose rows by their results so far would bias the difference. Each look is a
step of a test that was planned before anything was spent (`metrics/sequential.py`), kept beside run B, and gone on with
by the next call. Refuses runs whose code is no longer what made them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from osmosis.base.files import write_json
from osmosis.base.json_types import JsonObject
from osmosis.datasets.scan import scan_dataset
from osmosis.engine.journal import Journal
from osmosis.errors import OsmosisError, UsageError, ValidationError
from osmosis.metrics.compare import Comparison, compare
from osmosis.metrics.sequential import levels
from osmosis.records.decision import Decision, Look
from osmosis.records.plan import EvalPlan, Selection

from .extend import check_extendable, dataset_of, extend, restore

Say = Callable[[str], None]
LOOKS = 5
_SOLE = Selection()


class Paused(OsmosisError):
    """A run did not get as far as the next look; the same command goes on."""


@dataclass(frozen=True)
class Spent:
    """What is stored in both runs together."""

    rollouts: int
    cost_usd: float | None
    """None: unknown for some of them."""

    @classmethod
    def of(cls, journals: Sequence[Journal]) -> Spent:
        costs = [outcome.usage.cost_usd for journal in journals for outcome in journal.outcomes()]
        known = [cost for cost in costs if cost is not None]
        return cls(len(costs), sum(known) if len(known) == len(costs) else None)

    @property
    def mean_cost(self) -> float | None:
        return None if self.cost_usd is None or not self.rollouts else self.cost_usd / self.rollouts


class Deciding:
    """The test of run B against run A."""

    def __init__(self, a: Journal, b: Journal, aside: Collection[str] = ()) -> None:
        """`aside`: keys of rows that do not count."""
        self.journals = (a, b)
        self._aside = aside
        self._path = b.folder / f"decision-{a.folder.name}.json"
        self.begun = self._path.exists()
        if a.folder == b.folder:
            raise UsageError("a run does not differ from itself", hint="osmosis eval compare A B --until-decided")
        for journal in self.journals:
            check_extendable(journal)
            restore(journal)

    def open(self, score: str, max_rollouts: int | None, max_cost_usd: float | None) -> Decision:
        """The test as it was begun, else a new one. Raises UsageError for a budget or score that is not that of the
        test begun, and ValidationError where it could not take a step."""
        if not self.begun:
            return self._planned(score, max_rollouts, max_cost_usd)
        found = Decision.model_validate_json(self._path.read_bytes())
        other = score != found.score or (max_rollouts or found.max_rollouts) != found.max_rollouts
        if other or (max_cost_usd or found.max_cost_usd) != found.max_cost_usd:
            budget = f"--max-rollouts {found.max_rollouts}" + (
                f" --max-cost {found.max_cost_usd:g}" if found.max_cost_usd is not None else ""
            )
            raise UsageError(
                f"the test of {found.b} against {found.a} was begun for {found.score} with {budget}, and its error "
                "rate holds for that alone",
                hint="leave the budget out to continue; another test needs two new runs",
            )
        return found

    def _planned(self, score: str, max_rollouts: int | None, max_cost_usd: float | None) -> Decision:
        if max_rollouts is None and max_cost_usd is None:
            raise UsageError(
                "--until-decided needs a budget: --max-rollouts N or --max-cost USD, for both runs together",
                hint="osmosis eval compare A B --until-decided --max-rollouts 400",
            )
        spent = Spent.of(self.journals)
        budget = max_rollouts
        if max_cost_usd is not None:
            if not spent.mean_cost:
                raise ValidationError(
                    "what a rollout of these runs costs is unknown, or nothing: --max-cost cannot be planned with",
                    hint="give --max-rollouts instead",
                )
            affordable = int(max_cost_usd / spent.mean_cost)
            budget = affordable if budget is None else min(budget, affordable)
        assert budget is not None
        stages = self._stages(budget)
        total = stages[-1].rollouts
        shares = [stage.rollouts / total for stage in stages]
        looks = [stage.model_copy(update={"level": level}) for stage, level in zip(stages, levels(shares), strict=True)]
        a, b = (journal.folder.name for journal in self.journals)
        return Decision(
            a=a,
            b=b,
            score=score,
            max_rollouts=budget,
            max_cost_usd=max_cost_usd,
            rollouts_before=spent.rollouts,
            cost_before=spent.cost_usd,
            looks=looks,
        )

    def _stages(self, budget: int) -> list[Look]:
        """What each run has at each look, as far as the budget reaches; the first is what they have now."""
        plans = [journal.plan() for journal in self.journals]
        stored = [len(journal.finished()) for journal in self.journals]
        if not all(stored):
            raise ValidationError("a run without rollouts cannot be compared", hint="osmosis eval resume RUN")
        attempts = max(plan.attempts for plan in plans)
        selected = [int(journal.run().get("rows") or 0) for journal in self.journals]
        rows = max(selected)
        there = self._rows_there(plans)
        limited = there is not None
        most_rows = max(rows, there or 0)
        even = 2 * rows * attempts - sum(stored)
        """What brings both to the same rows and attempts."""
        each = (budget - even) // 2
        targets = [rows * attempts] if even else []
        targets += [rows * attempts + each * step // (LOOKS - 1) for step in range(1, LOOKS)]
        stages = [Look(rollouts=min(stored), attempts=min(plan.attempts for plan in plans), level=0)]
        for target in targets if each >= 0 else ():
            some, n = min(most_rows, target // attempts), attempts
            if some == most_rows:
                n = max(attempts, target // most_rows)
            if some * n > stages[-1].rollouts:
                stages.append(Look(rollouts=some * n, limit=some if limited else None, attempts=n, level=0))
        if len(stages) == 1:
            least = even or 2 * (1 if most_rows > rows else rows)
            raise ValidationError(
                f"{budget} more rollouts do not reach the next look, which takes {least}",
                hint=f"--max-rollouts {least} or more",
            )
        return stages

    def _rows_there(self, plans: Sequence[EvalPlan]) -> int | None:
        """How many rows both could run; None where the rows are not simply the first ones of the same file."""
        plain = [plan.selection.model_copy(update={"limit": None, "seed": 0}) for plan in plans]
        offset = plain[0].offset
        if any(selection != _SOLE.model_copy(update={"offset": offset}) for selection in plain):
            return None
        facts = [scan_dataset(dataset_of(journal), plain[0]) for journal in self.journals]
        return facts[0].selected if facts[0].sha256 == facts[1].sha256 else None

    def left(self, decision: Decision) -> tuple[int, float | None]:
        """The most rollouts, and by what they cost so far the dollars, that the rest of the test takes."""
        spent = Spent.of(self.journals)
        rollouts = max(0, 2 * decision.looks[-1].rollouts - spent.rollouts)
        return rollouts, None if spent.mean_cost is None else rollouts * spent.mean_cost

    def look(self, decision: Decision) -> Decision:
        """Compares what is there for the look that is due. `keep` what came of it once the test is agreed on."""
        due = decision.next_look
        assert due is not None
        found = self.compared(decision, decision.looks[due])
        seen = decision.looks[due].model_copy(
            update={"done": True, "p_value": found.p_value, "difference": found.difference}
        )
        looks = [*decision.looks[:due], seen, *decision.looks[due + 1 :]]
        verdict = found.verdict if found.verdict in ("better", "worse") else None
        return decision.model_copy(update={"looks": looks, "verdict": verdict})

    def keep(self, decision: Decision) -> None:
        """From here on it is this test, for whoever goes on with it."""
        write_json(self._path, decision.model_dump(mode="json"))
        self.begun = True

    def compared(self, decision: Decision, look: Look) -> Comparison:
        """The two runs as they are, at the level of a look."""
        a, b = self.journals
        bounds = {**b.plan().score_bounds, **a.plan().score_bounds}
        threshold = a.plan().pass_threshold
        return compare(
            a.outcomes(),
            b.outcomes(),
            threshold=threshold,
            score=decision.score,
            bounds=bounds,
            level=1 - look.level,
            aside=self._aside,
        )

    def extend(self, decision: Decision, look: Look, environ: Mapping[str, str], say: Say) -> None:
        """Brings both runs to where this look is made. Raises Paused where one did not get there, Conflict where its
        code is no longer what made it; what was run is kept."""
        for journal in self.journals:
            owed = look.rollouts - len(journal.finished())
            if owed <= 0:
                continue
            limit = None
            if decision.max_cost_usd is not None:
                left = decision.max_cost_usd - ((Spent.of(self.journals).cost_usd or 0) - (decision.cost_before or 0))
                limit = (Spent.of([journal]).cost_usd or 0) + left
            say(f"{journal.folder.name}: {owed:,} more rollouts")
            extend(journal, look, limit, environ)
            if len(journal.finished()) < look.rollouts:
                raise Paused(
                    f"run {journal.folder.name} stopped before the next look: {_why_stopped(journal)}",
                    hint="the same command continues; nothing is lost",
                )


def _why_stopped(journal: Journal) -> str:
    report: JsonObject = json.loads(journal.report_path.read_bytes()) if journal.report_path.exists() else {}
    return str(report.get("stopped") or "it was interrupted")
