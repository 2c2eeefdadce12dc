"""The search of `osmosis optimize`: GEPA chooses, a model rewrites texts, our engine runs and scores the candidates.

A search is deterministic but for its models, whose rollouts and answers are stored: run again, it takes the same way
without paying for it, and goes on from where it was interrupted. The best candidate is compared with the seed on rows
that the search never saw."""

import logging
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from osmosis.base.installation import extra_command
from osmosis.base.jsonable import JsonObject
from osmosis.datasets.keys import SelectedRows
from osmosis.datasets.scan import read_rows
from osmosis.engine.build_rollout import REWARD
from osmosis.engine.journal import Journal
from osmosis.engine.loader import forget_modules
from osmosis.errors import LoadError, OsmosisError, ValidationError
from osmosis.local.candidates import SEED, Candidates, Texts
from osmosis.local.reflection import Reflection, describe_rollout
from osmosis.local.run_options import RunOptions
from osmosis.metrics.compare import compare
from osmosis.metrics.figures import comparison_line
from osmosis.metrics.formats import score as format_score
from osmosis.metrics.summary import Summary
from osmosis.records.config.optimize import Optimize
from osmosis.records.run.plan import EvalPlan, Selection
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Rollout

_OUTAGES = ("rate_limit", "auth", "server_error", "connection", "server_died", "cancelled", "budget")


def split_rows(rows: SelectedRows, options: Optimize) -> dict[str, list[int]]:
    """Draw the rows of each use; of rows that are alike only the first is used, so that no use knows another's."""
    indices = [rows.places[keys[0]] for keys in rows.alike.values()]
    random.Random(options.seed).shuffle(indices)
    validation, end = options.validation_rows, options.validation_rows + options.test_rows
    if len(indices) < end + options.minibatch:
        raise ValidationError(
            f"the dataset has {len(indices)} different rows, fewer than validation_rows + test_rows + minibatch",
            hint=f"[optimize] validation_rows = {len(indices) // 4} and test_rows = {len(indices) // 2}",
        )
    return {"train": indices[end:], "validation": indices[:validation], "test": indices[validation:end]}


@dataclass
class Search:
    """Also GEPA's adapter, its stop condition and its callback."""

    plan: EvalPlan
    run_options: RunOptions
    options: Optimize
    candidates: Candidates
    rows: Mapping[str, list[int]]
    reflection: Reflection
    run_plan: Callable[[EvalPlan, RunOptions], Report]
    """Runs what a plan still owes; raises KeyboardInterrupt when a person interrupts it."""
    propose_new_texts = None

    def __post_init__(self) -> None:
        options, attempts = self.options, self.plan.attempts
        self._used: set[tuple[str, int]] = set()
        self._summary = Summary(self.plan)
        self._folder = self.candidates.folder.parent
        self._stopped = ""
        self._newest = (0, 0)
        """Rollouts so far, and the iteration that ran the last one."""
        self._next = attempts * (2 * options.minibatch + options.validation_rows + 2 * options.test_rows)
        """The most rollouts of one more iteration and the comparison."""
        least = self._next + attempts * options.validation_rows
        if least > options.max_rollouts:
            problem = f"max_rollouts = {options.max_rollouts} is too few for one new candidate and the comparison"
            raise ValidationError(problem, hint=f"[optimize] max_rollouts = {least}, or fewer rows")

    def run(self) -> JsonObject:
        try:
            from gepa import optimize
        except ImportError as error:
            raise OsmosisError("gepa is not installed", hint=extra_command("optimize")) from error
        seed, validation = self.candidates.seed, self.rows["validation"]
        before = [rollout.value(REWARD) for group in self._rollouts(seed, validation).values() for rollout in group]
        self._bounds = Journal(self._folder / "runs" / SEED).plan().score_bounds  # also what the grader declares
        undeclared = min([0.0, *(value for value in before if value)]), max(1.0, self.plan.pass_threshold)
        self._worst, self._best = self._bounds.get(REWARD, undeclared)
        result = optimize(
            seed_candidate=dict(seed),
            trainset=self.rows["train"],
            valset=validation,
            adapter=self,
            reflection_lm=self.reflection,
            reflection_minibatch_size=self.options.minibatch,
            perfect_score=self._best,
            stop_callbacks=self.should_stop,
            callbacks=[self],
            logger=SimpleNamespace(log=logging.getLogger(__name__).debug),
            track_best_outputs=False,
            seed=self.options.seed,
        )
        return self._conclude(result)

    def evaluate(self, batch: list[int], candidate: Texts, capture_traces: bool = False) -> Any:
        from gepa.core.adapter import EvaluationBatch

        rollouts = self._rollouts(candidate, batch)
        scores = [self._score(rollouts[row]) for row in batch]
        return EvaluationBatch(outputs=scores, scores=scores, trajectories=[(row, rollouts[row]) for row in batch])

    def make_reflective_dataset(self, candidate: Texts, eval_batch: Any, components: list[str]) -> JsonObject:
        groups: list[tuple[int, list[Rollout]]] = eval_batch.trajectories
        selection = Selection(rows=[row for row, _ in groups])
        truths = {row.index: row.ground_truth for row in read_rows(Path(self.plan.dataset), selection)}
        lowest = [(row, min(group, key=lambda rollout: self._score([rollout]))) for row, group in groups if group]
        examples = [describe_rollout(rollout, truths[row]) for row, rollout in lowest]
        return {component: examples for component in components}

    def _score(self, rollouts: Sequence[Rollout]) -> float:
        values = [rollout.value(REWARD) for rollout in rollouts] or [None]
        return sum(self._worst if value is None else value for value in values) / len(values)

    def _rollouts(self, texts: Texts, rows: Sequence[int]) -> dict[int, list[Rollout]]:
        """Return a candidate's rollouts by row; run those that are not stored. One that cannot be loaded has none."""
        name, folder = self.candidates.open(texts)
        journal = Journal(self._folder / "runs" / name)
        stored = _by_row(journal, rows)
        if any(len(group) < self.plan.attempts for group in stored.values()):
            before = journal.plan().selection.rows or [] if journal.exists else []
            plan = self.plan.model_copy(update={"name": name, "selection": Selection(rows=sorted({*before, *rows}))})
            forget_modules(self.candidates.folder)
            try:
                report = self.run_plan(plan, replace(self.run_options, base_dir=folder, retry_failed=_OUTAGES))
            except LoadError:
                if name == SEED:
                    raise
                return stored
            stored = _by_row(journal, rows)
            if report.stopped or any(len(group) < self.plan.attempts for group in stored.values()):
                problem = report.stopped or "rollouts ended without an answer of the model or a server"
                raise OsmosisError(f"candidate {name}: {problem}", hint="what ran is kept: the same command goes on")
        for row, group in stored.items():
            if (name, row) not in self._used:
                self._used.add((name, row))
                for rollout in group:
                    self._summary.add(rollout)
        return stored

    def should_stop(self, state: Any) -> bool:
        if self.reflection.problem is not None:
            raise self.reflection.problem
        options, done = self.options, self._summary.completed
        cost_usd = sum(cost or 0.0 for cost in (self._summary.total_cost_usd, *self.reflection.costs))
        if done > self._newest[0]:
            self._newest = (done, state.i)
        patience = 2 * math.ceil(len(self.rows["train"]) / options.minibatch)
        if max(state.program_full_scores_val_set) >= self._best:
            self._stopped = "every validation row has the highest score"
        elif done + self._next > options.max_rollouts:
            self._stopped = f"max_rollouts: one more candidate could take more than {options.max_rollouts:,}"
        elif options.max_cost is not None and cost_usd * (1 + self._next / done) > options.max_cost:
            self._stopped = f"max_cost: one more candidate would probably cost more than {options.max_cost:g} USD"
        elif state.i - self._newest[1] > patience:
            self._stopped = f"no new text was proposed in {patience} iterations"
        return bool(self._stopped)

    def on_valset_evaluated(self, event: Mapping[str, Any]) -> None:
        name, mean = self.candidates.open(event["candidate"])[0], format_score(event["average_score"])
        self.run_options.watcher.say(f"candidate {name}: {mean} on the validation rows")

    def _conclude(self, result: Any) -> JsonObject:
        names = [self.candidates.open(texts)[0] for texts in result.candidates]
        means, by_row = result.val_aggregate_scores, result.val_subscores
        candidates: dict[str, JsonObject] = {}
        for name, parents, mean, own in zip(names, result.parents, means, by_row, strict=True):
            parent = next((names[index] for index in parents if index is not None), None)
            is_pareto = not any(other != own and all(other[row] >= own[row] for row in own) for other in by_row)
            candidates.setdefault(name, {"name": name, "parent": parent, "validation": mean, "is_pareto": is_pareto})
        best, test = means.index(max(means)), self.rows["test"]
        conclusion, comparison = "no candidate is better than the seed on the validation rows: nothing to compare", None
        if names[best] != SEED:
            sides = (self._rollouts(texts, test).values() for texts in (self.candidates.seed, result.candidates[best]))
            before, after = ([rollout for group in side for rollout in group] for side in sides)
            comparison = compare(before, after, threshold=self.plan.pass_threshold, score=REWARD, bounds=self._bounds)
            conclusion = f"{names[best]} against the seed on {len(test)} unseen rows: {comparison_line(comparison)}"
        costs = [self._summary.total_cost_usd, *self.reflection.costs]
        return {
            "folder": str(self._folder),
            "rows": {use: len(indices) for use, indices in self.rows.items()},
            "candidates": list(candidates.values()),
            "stopped": self._stopped,
            "winner": names[best],
            "verdict": comparison and comparison.verdict,
            "conclusion": conclusion,
            "comparison": comparison and comparison.to_dict(),
            "diff": "".join(self.candidates.diff(names[best])),
            "rollouts": self._summary.completed,
            "reflections": len(self.reflection.costs),
            "cost_usd": None if None in costs else sum(cost or 0.0 for cost in costs),
        }


def _by_row(journal: Journal, rows: Sequence[int]) -> dict[int, list[Rollout]]:
    """Return the stored rollouts of rows, without those that say nothing of an agent and are run again."""
    groups: dict[int, list[Rollout]] = {row: [] for row in rows}
    for rollout in journal.rollouts() if journal.exists else ():
        is_outage = rollout.failure is not None and rollout.failure.category.value in _OUTAGES
        if rollout.row_index in groups and not is_outage:
            groups[rollout.row_index].append(rollout)
    return groups
