from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from osmosis.base.files import write_json
from osmosis.datasets.scan import scan_dataset
from osmosis.engine.journal import Journal
from osmosis.errors import OsmosisError, UsageError, ValidationError
from osmosis.local.resume_at_commit import check_extendable, dataset_of, extend, restore
from osmosis.metrics.compare import Comparison, compare
from osmosis.metrics.intervals import levels
from osmosis.records.run.history import Decision, Look
from osmosis.records.run.plan import EvalPlan, Selection

Say = Callable[[str], None]
LOOKS = 5
_SOLE = Selection()


class Paused(OsmosisError): ...


@dataclass(frozen=True)
class Spent:
    rollouts: int
    cost_usd: float | None

    @classmethod
    def of(cls, journals: Sequence[Journal]) -> "Spent":
        costs = [outcome.usage.cost_usd for journal in journals for outcome in journal.rollouts()]
        priced = [cost for cost in costs if cost is not None]
        return cls(len(costs), sum(priced) if len(priced) == len(costs) else None)

    @property
    def mean_cost(self) -> float | None:
        return None if self.cost_usd is None or not self.rollouts else self.cost_usd / self.rollouts


class Deciding:
    def __init__(self, a: Journal, b: Journal, aside: Collection[str] = ()) -> None:
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
        if not self.begun:
            return self._planned(score, max_rollouts, max_cost_usd)
        begun = Decision.model_validate_json(self._path.read_bytes())
        other = score != begun.score or (max_rollouts or begun.max_rollouts) != begun.max_rollouts
        if other or (max_cost_usd or begun.max_cost_usd) != begun.max_cost_usd:
            budget = f"--max-rollouts {begun.max_rollouts}" + (
                f" --max-cost {begun.max_cost_usd:g}" if begun.max_cost_usd is not None else ""
            )
            begin = f"the test of {begun.b} against {begun.a} was begun for {begun.score} with {budget}"
            hint = "leave the budget out to continue; another test needs two new runs"
            raise UsageError(f"{begin}, and its error rate holds for that alone", hint=hint)
        return begun

    def _planned(self, score: str, max_rollouts: int | None, max_cost_usd: float | None) -> Decision:
        if max_rollouts is None and max_cost_usd is None:
            message = "--until-decided needs a budget: --max-rollouts N or --max-cost USD, for both runs together"
            raise UsageError(message, hint="osmosis eval compare A B --until-decided --max-rollouts 400")
        spent = Spent.of(self.journals)
        budget = max_rollouts
        if max_cost_usd is not None:
            if not spent.mean_cost:
                message = "what a rollout of these runs costs is unknown, or nothing: --max-cost cannot be planned with"
                raise ValidationError(message, hint="give --max-rollouts instead")
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
        plans = [journal.plan() for journal in self.journals]
        stored = [len(journal.finished()) for journal in self.journals]
        if not all(stored):
            raise ValidationError("a run without rollouts cannot be compared", hint="osmosis eval resume RUN")
        attempts = max(plan.attempts for plan in plans)
        rows = max([int(journal.run().get("rows") or 0) for journal in self.journals])
        stored_rows = self._rows_there(plans)
        limited = stored_rows is not None
        most_rows = max(rows, stored_rows or 0)
        even = 2 * rows * attempts - sum(stored)
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
            message = f"{budget} more rollouts do not reach the next look, which takes {least}"
            raise ValidationError(message, hint=f"--max-rollouts {least} or more")
        return stages

    def _rows_there(self, plans: Sequence[EvalPlan]) -> int | None:
        plain = [plan.selection.model_copy(update={"limit": None, "seed": 0}) for plan in plans]
        offset = plain[0].offset
        if any(selection != _SOLE.model_copy(update={"offset": offset}) for selection in plain):
            return None
        facts = [scan_dataset(dataset_of(journal), plain[0]) for journal in self.journals]
        return facts[0].selected if facts[0].sha256 == facts[1].sha256 else None

    def left(self, decision: Decision) -> tuple[int, float | None]:
        spent = Spent.of(self.journals)
        rollouts = max(0, 2 * decision.looks[-1].rollouts - spent.rollouts)
        return rollouts, None if spent.mean_cost is None else rollouts * spent.mean_cost

    def look(self, decision: Decision) -> Decision:
        due = decision.next_look
        assert due is not None
        comparison = self.compared(decision, decision.looks[due])
        look = decision.looks[due].model_copy(
            update={"done": True, "p_value": comparison.p_value, "difference": comparison.difference}
        )
        looks = [*decision.looks[:due], look, *decision.looks[due + 1 :]]
        verdict = comparison.verdict if comparison.verdict in ("better", "worse") else None
        return decision.model_copy(update={"looks": looks, "verdict": verdict})

    def keep(self, decision: Decision) -> None:
        write_json(self._path, decision.model_dump(mode="json"))
        self.begun = True

    def compared(self, decision: Decision, look: Look) -> Comparison:
        a, b = self.journals
        bounds = {**b.plan().score_bounds, **a.plan().score_bounds}
        threshold = a.plan().pass_threshold
        rollouts, score, level = (a.rollouts(), b.rollouts()), decision.score, 1 - look.level
        return compare(*rollouts, threshold=threshold, score=score, bounds=bounds, level=level, aside=self._aside)

    def extend(self, decision: Decision, look: Look, environ: Mapping[str, str], say: Say) -> None:
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
                report = journal.report()
                reason = report.stopped if report is not None else None
                message = f"run {journal.folder.name} stopped before the next look: {reason or 'it was interrupted'}"
                raise Paused(message, hint="the same command continues; nothing is lost")
