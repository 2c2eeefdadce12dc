"""Search better texts for `osmosis optimize`: GEPA chooses, a model rewrites, our engine scores the candidates. What
models answered is stored, so a search that runs again goes on without paying twice."""

import asyncio
import hashlib
import json
import logging
import math
import random
import shutil
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import orjson

from osmosis.base.files import write_json, write_text
from osmosis.base.installation import extra_command
from osmosis.base.jsonable import JsonObject
from osmosis.base.redact import Redactor
from osmosis.datasets.keys import SelectedRows
from osmosis.engine.loader import forget_modules
from osmosis.engine.rollout_model import REWARD
from osmosis.errors import Conflict, LoadError, OsmosisError, ValidationError
from osmosis.llm import ChatRequest, Completion, open_model
from osmosis.metrics.compare import compare
from osmosis.metrics.formats import score as format_score
from osmosis.metrics.summary import Summary
from osmosis.records.config.optimize import SEED, Candidate, Optimization, Optimize
from osmosis.records.run.plan import EvalPlan, ModelSpec
from osmosis.records.run.report import Bounds
from osmosis.records.run.rollout import Rollout
from osmosis.records.run.rows import Row
from osmosis.sdk.messages import FOLDER, SUFFIX, solution_of

OUTAGES = ("rate_limit", "auth", "server_error", "connection", "server_died", "cancelled", "budget")
Texts = Mapping[str, str]  # Text by file, relative to the rollout directory
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", "node_modules")


class Reflection:
    """Called with a prompt, returns the answer; GEPA goes on after a call that failed, which is kept in `problem`."""

    run: Callable[[Coroutine[object, object, Completion]], Completion] = staticmethod(asyncio.run)

    def __init__(self, spec: ModelSpec, key: str | None, path: Path) -> None:
        self._spec = spec
        self._key = key
        self._path = path
        self.answers: list[JsonObject] = json.loads(path.read_bytes()) if path.exists() else []
        self.costs: list[float | None] = []
        """US dollars of each call; None: unknown price."""
        self.problem: OsmosisError | None = None
        self.on_answer: Callable[[], None] = lambda: None
        """Called when a new answer is stored, before it is used."""

    def __call__(self, prompt: str) -> str:
        digest, calls = hashlib.sha256(prompt.encode()).hexdigest(), len(self.costs)
        is_new = calls >= len(self.answers) or self.answers[calls]["prompt"] != digest
        if is_new:
            try:
                completion = self.run(self._ask(prompt))
            except OsmosisError as error:
                error.message = Redactor([self._key] if self._key else []).text(error.message)
                self.problem = error
                raise
            answer, cost_usd = solution_of([completion.message]), completion.usage.cost_usd
            self.answers[calls:] = [{"prompt": digest, "answer": answer, "cost_usd": cost_usd}]
            write_json(self._path, self.answers)
        self.costs.append(self.answers[calls]["cost_usd"])
        if is_new:
            self.on_answer()
        return str(self.answers[calls]["answer"])

    async def _ask(self, prompt: str) -> Completion:
        model = open_model(self._spec, api_key=self._key)
        try:
            return await model.complete(ChatRequest([{"role": "user", "content": prompt}]))
        finally:
            await model.close()


def describe_rollout(rollout: Rollout, truth: str | None) -> JsonObject:
    ends = [*rollout.messages[:4], *rollout.messages[4:][-8:]]
    lines = (f"{each.get('role')}: {each.get('content') or json.dumps(each.get('tool_calls'))}" for each in ends)
    conversation = "\n".join(line[:2000] for line in lines)
    scores = {"__all__": {"value", "reason", "parts", "failure"}}
    facts = rollout.model_dump(
        mode="json", exclude_none=True, include={"scores": scores, "failure": {"message"}, "answer_issue": True}
    )
    return {"conversation": conversation, **facts, "expected": truth or "not in the dataset"}


@dataclass(frozen=True)
class Candidates:
    folder: Path
    workspace: Path
    rollout: Path  # Relative to the workspace, and to the folder of each candidate
    seed: Texts
    keep_links: bool = False
    """Copy links as links: of code that may not read this machine's files, also not by a link to them."""
    opened: dict[str, Texts] = field(default_factory=dict)
    """Texts of each candidate by its name, in the order of their first use."""

    def open(self, texts: Texts) -> tuple[str, Path]:
        """Return name and folder of a candidate. Files end as the seed's do: a model does not see their ends."""
        ends = {file: "\n" if before.endswith("\n") else "" for file, before in self.seed.items()}
        files = {file: text.rstrip("\n") + ends[file] for file, text in texts.items()}
        is_seed = files == self.seed
        name = SEED if is_seed else hashlib.sha256(orjson.dumps(sorted(files.items()))).hexdigest()[:10]
        self.opened.setdefault(name, files)
        target, draft = self.folder / name, self.folder / f".{name}"
        if not target.exists():
            source = (self.workspace if is_seed else self.folder / SEED) / self.rollout
            shutil.rmtree(draft, ignore_errors=True)
            shutil.copytree(source, draft / self.rollout, ignore=_LEFT_OUT, symlinks=self.keep_links)
            for file, text in files.items():
                write_text(draft / self.rollout / file, text)
            draft.rename(target)
        return name, target


def apply_winner(workspace: Path, optimization: Optimization) -> None:
    """Write the winner's texts to the working tree; raise Conflict when a file there is no longer the seed's."""
    folder = workspace / optimization.folder
    for file, before in optimization.seed.items():
        if not (folder / file).is_file() or (folder / file).read_text("utf-8") != before:
            problem = f"{optimization.folder / file} is not the text that was optimized, so nothing was written"
            raise Conflict(problem, hint="restore it (git log shows its versions), or apply the diff by hand")
    for file, text in optimization.texts(optimization.winner).items():
        write_text(folder / file, text)


def read_texts(rollout: Path, options: Optimize) -> dict[str, str]:
    names = [*(f"{FOLDER}/{name}{SUFFIX}" for name in options.prompts), *options.files]
    names = names or sorted(f"{FOLDER}/{path.name}" for path in (rollout / FOLDER).glob(f"*{SUFFIX}"))
    if not names:
        problem = f"rollouts/{rollout.name} has no {FOLDER}/*{SUFFIX}, so there is nothing to improve"
        raise ValidationError(problem, hint=f"write {FOLDER}/NAME.md and read ctx.prompts, or name [optimize] files")
    if linked := [name for name in names if (rollout / name).resolve() != rollout.resolve() / name]:
        raise ValidationError(f"a text cannot be a link: {linked[0]}", hint="copy the file into the rollout")
    try:
        return {name: (rollout / name).read_text("utf-8") for name in names}
    except (OSError, UnicodeDecodeError) as error:
        raise ValidationError(f"a text cannot be read: {error}", hint="correct [optimize] prompts or files") from None


def split_rows(rows: SelectedRows, options: Optimize, attempts: int) -> dict[str, list[int]]:
    """Draw the rows of each use; of rows that are alike only the first is used, so that no use knows another's."""
    indices = [rows.places[keys[0]] for keys in rows.alike.values()]
    options.check_size(len(indices), attempts)
    random.Random(options.seed).shuffle(indices)
    validation, end = options.validation_rows, options.validation_rows + options.test_rows
    return {"train": indices[end:], "validation": indices[:validation], "test": indices[validation:end]}


@dataclass
class Search:
    """Also GEPA's adapter, its stop condition and its callback."""

    plan: EvalPlan
    options: Optimize
    candidates: Candidates
    rows: Mapping[str, list[int]]
    reflection: Reflection
    read_rows: Callable[[Sequence[int]], Iterator[Row]]
    read_rollouts: Callable[[str], Iterable[Rollout]]  # Reads what is stored of a candidate, by name
    run_rows: Callable[[str, Path, Sequence[int]], str | None]
    """Runs what these rows owe of a candidate; returns why it ended early, raises LoadError for broken code."""
    read_bounds: Callable[[], Mapping[str, Bounds]]
    on_progress: Callable[[Optimization, str], None]
    again: str = "the same command"  # The command that goes on after an outage
    propose_new_texts = None

    def __post_init__(self) -> None:
        options, attempts = self.options, self.plan.attempts
        self.reflection.on_answer = lambda: self.on_progress(self.state(), "")
        self._used: set[tuple[str, int]] = set()
        self._summary = Summary(self.plan)
        self._stopped = ""
        self._evaluated: list[tuple[Candidate, Mapping[int, float]]] = []
        """Candidates with their score on each validation row, and again with the same texts."""
        self._newest = (0, 0)
        """Rollouts so far, and the iteration that ran the last one."""
        self._next = attempts * (2 * options.minibatch + options.validation_rows + 2 * options.test_rows)
        """The most rollouts of one more iteration and the comparison."""

    def run(self) -> Optimization:
        gepa, seed, validation = load_gepa(), self.candidates.seed, self.rows["validation"]
        before = [rollout.value(REWARD) for group in self._rollouts(seed, validation).values() for rollout in group]
        self._bounds = self.read_bounds()
        undeclared = min([0.0, *(value for value in before if value)]), max(1.0, self.plan.pass_threshold)
        self._worst, self._best = self._bounds.get(REWARD, undeclared)
        gepa.optimize(
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
        return self._conclude()

    def evaluate(self, batch: list[int], candidate: Texts, capture_traces: bool = False) -> Any:
        from gepa.core.adapter import EvaluationBatch

        rollouts = self._rollouts(candidate, batch)
        scores = [self._score(rollouts[row]) for row in batch]
        return EvaluationBatch(outputs=scores, scores=scores, trajectories=[(row, rollouts[row]) for row in batch])

    def make_reflective_dataset(self, candidate: Texts, eval_batch: Any, components: list[str]) -> JsonObject:
        groups: list[tuple[int, list[Rollout]]] = eval_batch.trajectories
        truths = {row.index: row.ground_truth for row in self.read_rows([row for row, _ in groups])}
        lowest = [(row, min(group, key=lambda rollout: self._score([rollout]))) for row, group in groups if group]
        examples = [describe_rollout(rollout, truths[row]) for row, rollout in lowest]
        return {component: examples for component in components}

    def _score(self, rollouts: Sequence[Rollout]) -> float:
        values = [rollout.value(REWARD) for rollout in rollouts] or [None]
        return sum(self._worst if value is None else value for value in values) / len(values)

    def _rollouts(self, texts: Texts, rows: Sequence[int]) -> dict[int, list[Rollout]]:
        """Return a candidate's rollouts by row; run those that are not stored. One that cannot be loaded has none."""
        name, folder = self.candidates.open(texts)
        stored = self._by_row(name, rows)
        if any(len(group) < self.plan.attempts for group in stored.values()):
            forget_modules(self.candidates.folder)
            try:
                stopped = self.run_rows(name, folder, rows)
            except LoadError:
                if name == SEED:
                    raise
                return stored
            stored = self._by_row(name, rows)
            if stopped or any(len(group) < self.plan.attempts for group in stored.values()):
                problem = stopped or "rollouts ended without an answer of the model or a server"
                raise OsmosisError(f"candidate {name}: {problem}", hint=f"what ran is kept: {self.again} goes on")
        for row, group in stored.items():
            if (name, row) not in self._used:
                self._used.add((name, row))
                for rollout in group:
                    self._summary.add(rollout)
        return stored

    def _by_row(self, name: str, rows: Sequence[int]) -> dict[int, list[Rollout]]:
        """Return the stored rollouts of rows, without those that say nothing of an agent and are run again."""
        groups: dict[int, list[Rollout]] = {row: [] for row in rows}
        for rollout in self.read_rollouts(name):
            if rollout.row_index in groups and not is_outage(rollout):
                groups[rollout.row_index].append(rollout)
        return groups

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
        name, mean = self.candidates.open(event["candidate"])[0], event["average_score"]
        parent = next((self._evaluated[index][0].name for index in event["parent_ids"]), None)
        step, texts = self.step_of(name), self.candidates.opened[name]
        changed = {file: text for file, text in texts.items() if text != self.candidates.seed[file]}
        candidate = Candidate(name=name, step=step, parent=parent, validation=mean, texts=changed)
        self._evaluated.append((candidate, event["scores_by_val_id"]))
        self.on_progress(self.state(), f"candidate {name}: {format_score(mean)} on the validation rows")

    def step_of(self, name: str) -> int:
        return 1 + list(self.candidates.opened).index(name)

    def state(self, **end: object) -> Optimization:
        scores = [own for _, own in self._evaluated]
        candidates: dict[str, Candidate] = {}
        for candidate, own in self._evaluated:
            candidate.is_pareto = not any(
                other != own and all(other[row] >= own[row] for row in own) for other in scores
            )
            candidates.setdefault(candidate.name, candidate)
        best = max(candidates.values(), key=lambda candidate: candidate.validation, default=None)
        costs = [self._summary.total_cost_usd, *self.reflection.costs]
        state = Optimization(
            rollout=self.candidates.rollout.name,
            seed=dict(self.candidates.seed),
            rows={use: len(indices) for use, indices in self.rows.items()},
            candidates=list(candidates.values()),
            stopped=self._stopped,
            winner=best.name if best else SEED,
            max_rollouts=self.options.max_rollouts,
            max_cost=self.options.max_cost,
            rollouts=self._summary.completed,
            reflections=len(self.reflection.costs),
            cost_usd=None if None in costs else sum(cost or 0.0 for cost in costs),
            answers=self.reflection.answers,
        )
        return state.model_copy(update={"diff": "".join(state.diff_lines(state.winner)), **end})

    def _conclude(self) -> Optimization:
        winner, test, seed = self.state().winner, self.rows["test"], self.candidates.seed
        if winner == SEED:
            conclusion = "no candidate is better than the seed on the validation rows: nothing to compare"
            return self.state(conclusion=conclusion)
        sides = (self._rollouts(texts, test).values() for texts in (seed, self.candidates.opened[winner]))
        before, after = ([rollout for group in side for rollout in group] for side in sides)
        comparison = compare(before, after, threshold=self.plan.pass_threshold, score=REWARD, bounds=self._bounds)
        conclusion = f"{winner} against the seed on {len(test)} unseen rows: {comparison}"
        return self.state(verdict=comparison.verdict, conclusion=conclusion, comparison=comparison.to_dict())


def load_gepa() -> ModuleType:
    try:
        return import_module("gepa")
    except ImportError as error:
        raise OsmosisError("gepa is not installed", hint=extra_command("optimize")) from error


def is_outage(rollout: Rollout) -> bool:
    return rollout.failure is not None and rollout.failure.category.value in OUTAGES
