"""Questions about arms, answered by runs that grow until they are: the runs, and a file with the state of the
questions. What is run next and what it answers is `metrics/decide.py`."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from typing_extensions import Unpack

from osmosis.base.files import file_sha256, write_json
from osmosis.base.jsonable import JsonObject
from osmosis.datasets.keys import SelectedRows
from osmosis.datasets.scan import scan_dataset
from osmosis.engine.journal import Journal
from osmosis.engine.loader import name_of
from osmosis.engine.rollout_model import REWARD
from osmosis.errors import UsageError, ValidationError
from osmosis.local.evaluate import AgentLike, DatasetLike, EvaluateOptions, block_on, evaluate_async, read_keywords
from osmosis.local.quarantine_file import file_around, read
from osmosis.local.run import stored_report
from osmosis.local.run_options import ScoreFunction, check_name
from osmosis.metrics.decide import answer_questions, order_rows, parse_question, plan_stages
from osmosis.metrics.intervals import ALPHA, scale_of
from osmosis.metrics.planning import Pilot, pilot_of, scores_by_row
from osmosis.records.base import Record
from osmosis.records.run.plan import Budget, ModelSpec, Selection
from osmosis.records.run.rollout import Rollout
from osmosis.records.run.study import Question, Stage, Study

HISTORY = 5
"""Newest runs over the dataset that tell which of its rows are settled."""
MOST_ROWS = 10_000
EVEN = 0.25
"""Variance of passing half of the time, the largest there is."""


@dataclass(frozen=True)
class StudyLimits:
    max_cost: float | None = None
    max_rollouts: int | None = None
    limit: int | None = None
    score: str | None = None


@dataclass
class Growth:
    """Rows and attempts that the run of an arm must have; `left`: US dollars that it may have cost by then."""

    arm: str
    run: str
    rows: list[int]
    attempts: int
    left: float | None
    error: str | None = None


@dataclass(frozen=True)
class Decided:
    name: str
    questions: list[Question]
    runs: Mapping[str, str]
    """Name of the run of each arm; arms that are the same have the same run."""
    rollouts: int
    planned_rollouts: int
    failed: int
    cost_usd: float
    error_rate: float = ALPHA
    """Chance of any wrong answer among all questions, at most."""

    def to_dict(self) -> JsonObject:
        return {name: value for name, value in vars(self).items() if name != "questions"}

    def __str__(self) -> str:
        failed = f"; {self.failed:,} failed and count as 0" if self.failed else ""
        used = f"{self.rollouts:,} of at most {self.planned_rollouts:,} rollouts{failed}"
        lines = [_answer_line(question) for question in self.questions]
        return "\n".join([*lines, f"{used}; wrong answers in at most {self.error_rate:.0%} of decisions"])


class StudyRuns:
    def __init__(
        self, name: str, arms: Mapping[str, JsonObject], runs: Path, limits: StudyLimits, say: Callable[[str], object]
    ) -> None:
        self._name, self._arms, self._folder, self._limits, self._say = name, arms, runs, limits, say
        self._path = runs.parent / "decisions" / f"{name}.json"
        equal = {label: next(k for k, v in arms.items() if v == own) for label, own in arms.items()}
        self.run_names = {label: f"{name}--{slug(first)[:34]}" for label, first in equal.items()}

    def open(self, questions: list[Question], dataset: Path, facts: JsonObject, cwd: Path) -> Study:
        """Read the state of this decision, or begin one; raise UsageError when it was begun for something else."""
        if self._path.exists():
            study = Study.model_validate_json(self._path.read_bytes())
            if changed := [key for key, value in facts.items() if study.facts.get(key) != value]:
                message = f"{self._name} began with other words ({', '.join(changed)}); its error rate is theirs"
                raise UsageError(message, hint="--name NAME begins another one")
            return study
        rows = SelectedRows()
        scan_dataset(dataset, Selection(limit=self._limits.limit), rows=rows).refuse_bad(dataset)
        aside = read(file_around(cwd)).of([dataset.stem]).held
        usable = [index for key, index in rows.places.items() if key not in aside][:MOST_ROWS]
        most, arms = self._limits.max_rollouts, len(set(self.run_names.values()))
        each = len(usable) if most is None else most // arms
        if not usable or not each:
            message = f"{len(usable)} rows and {most} rollouts are too few for {arms} arms"
            raise ValidationError(message, hint="--limit, --max-rollouts")
        settled = sorted(self._find_settled(file_sha256(dataset)) & set(usable))
        order, stages, planned = order_rows(usable, settled), plan_stages(len(usable), each), not self._limits.max_cost
        study = Study(questions=questions, order=order, settled=settled, stages=stages, is_planned=planned)
        return study.model_copy(update={"arms": dict(self._arms), "facts": facts})

    def _find_settled(self, sha256: str) -> set[int]:
        """Return the rows that earlier runs tried at least twice and always passed, or never."""
        passed: dict[int, list[bool]] = {}
        files = sorted(self._folder.glob("*/run.json"), key=lambda file: -file.stat().st_mtime)
        journals = [Journal(file.parent) for file in files if file.parent.name not in self.run_names.values()]
        alike = [(journal, plan) for journal in journals if (plan := journal.plan()).dataset_hash == sha256]
        for journal, plan in alike[:HISTORY]:
            for row, scores in scores_by_row(journal.rollouts(), _primary(journal)).items():
                passed.setdefault(row, []).extend(score >= plan.pass_threshold for score in scores)
        return {row for row, tries in passed.items() if len(tries) > 1 and len(set(tries)) == 1}

    def announce(self, study: Study) -> None:
        say, last = self._say, study.stages[-1]
        arms = {self.run_names[label]: changes for label, changes in study.arms.items()}
        for question in study.questions:
            say(f"  {question.text}" + (f": {question.answer}" if question.answer else ""))
        for name, changes in arms.items():
            say(f"  {name}: {', '.join(f'{key} {value}' for key, value in changes.items())}")
        settled = f"; {len(study.settled):,} rows are settled by earlier runs" if study.settled else ""
        most = f"{len(arms):,} arms, at most {last.rows:,} rows x {last.attempts} in each"
        say(f"{most}: {len(arms) * last.rollouts:,} rollouts{settled}")
        pilot = Pilot(last.rows, last.attempts, 0.0, EVEN, 0.0, (0.0, 1.0))
        say(f"{_reach(pilot, last)}, if half of the attempts pass; sooner where arms agree")

    def growths(self, study: Study) -> Iterator[Growth]:
        """Yield what an arm lacks for the next look, to be run before the next one is taken; raise ValidationError
        where it was not."""
        assert study.due is not None
        stage, names = study.stages[study.due], set(self.run_names.values())
        self._save(study)
        rows = study.order[: stage.rows]
        for name, arm in {self.run_names[label]: label for label in study.open_arms}.items():
            if not self._count_missing(name, rows, stage.attempts):
                continue
            max_cost = self._limits.max_cost
            left = None if max_cost is None else max_cost - sum(map(self._cost, names - {name}))
            self._say(f"{name}: {len(rows):,} rows x {stage.attempts}")
            growth = Growth(arm, name, sorted(rows), stage.attempts, left)
            yield growth
            if missing := self._count_missing(name, rows, stage.attempts):
                message = f"run {name} lacks {missing:,} rollouts of this look: {growth.error or 'it stopped'}"
                raise ValidationError(message, hint="the same command goes on; nothing is lost")

    def look(self, study: Study) -> Study:
        """Return the study after its next look, once its runs have grown."""
        due, say = study.due, self._say
        assert due is not None
        stage, open_arms = study.stages[due], study.open_arms
        if not study.is_planned:
            return self._plan(study, stage)
        first = Journal(self._folder / self.run_names[open_arms[0]])
        score = self._limits.score or _primary(first)
        rollouts = {label: self._read(self.run_names[label]) for label in open_arms}
        if silent := [k for k, own in rollouts.items() if not any(score in rollout.scores for rollout in own)]:
            message = f"no rollout of {silent[0]} has a score {score}"
            raise ValidationError(message, hint=f"osmosis eval show {self.run_names[silent[0]]}")
        scores = {label: scores_by_row(own, score) for label, own in rollouts.items()}
        values = [value for rows in scores.values() for row in rows.values() for value in row]
        scale = scale_of((min(values), max(values)), first.plan().score_bounds.get(score))
        if scale is None:
            message = f"{score} has values between {min(values):g} and {max(values):g}, and its bounds are unknown"
            raise ValidationError(message, hint="write score_min and score_max into [evaluation] of the config")
        changes = {
            i: [_change(scores[q.right].get(row), scores[q.left].get(row)) for row in study.order[: stage.rows]]
            for i, q in enumerate(study.questions)
            if q.answer is None
        }
        after = answer_questions(study, changes, scale[1] - scale[0])
        self._save(after)
        arms = len({self.run_names[label] for label in open_arms})
        say(f"look {due + 1} of {len(study.stages)}: {stage.rows:,} rows x {stage.attempts}, {arms} arms")
        for i, row_changes in changes.items():
            q = after.questions[i]
            say(f"  {q.text}: {q.answer or 'open'}, difference {q.difference or 0.0:+.3f}, p {q.p_value or 0.0:.2g}")
            if due == 0:
                pilot = pilot_of([list(scores[side].values()) for side in (q.left, q.right)], row_changes, scale)
                say(f"    by these rows: {_reach(pilot, study.stages[-1])}")
        return after

    def result(self, study: Study) -> Decided:
        names = list(dict.fromkeys(self.run_names.values()))
        rollouts = [rollout for name in names for rollout in self._read(name)]
        return Decided(
            self._name,
            study.questions,
            self.run_names,
            rollouts=len(rollouts),
            planned_rollouts=len(names) * study.stages[-1].rollouts,
            failed=sum(rollout.failure is not None for rollout in rollouts),
            cost_usd=sum(rollout.usage.cost_usd or 0.0 for rollout in rollouts),
        )

    def _count_missing(self, name: str, rows: Sequence[int], attempts: int) -> int:
        have = Counter(rollout.row_index for rollout in self._read(name))
        return sum(max(0, attempts - have[row]) for row in rows)

    def _read(self, name: str) -> list[Rollout]:
        journal = Journal(self._folder / name)
        return list(journal.rollouts()) if journal.exists else []

    def _cost(self, name: str) -> float:
        return sum(rollout.usage.cost_usd or 0.0 for rollout in self._read(name))

    def _plan(self, study: Study, stage: Stage) -> Study:
        """Return the study with the looks that the budget in USD reaches, now that the first rows have a cost."""
        spent, most = sum(map(self._cost, set(self.run_names.values()))), study.stages[-1].rollouts
        if spent and self._limits.max_cost is not None:
            affordable = max(stage.rollouts, int(self._limits.max_cost / spent * stage.rollouts))
            most = affordable if self._limits.max_rollouts is None else min(most, affordable)
        stages = plan_stages(len(study.order), most)
        price = f"${spent / stage.rollouts:.4f} for an attempt in all arms" if spent else "nothing was priced"
        self._say(f"{price}: at most {stages[-1].rows:,} rows x {stages[-1].attempts} in each arm")
        return study.model_copy(update={"stages": stages, "is_planned": True})

    def _save(self, study: Study) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._path, study.model_dump(mode="json"))


Keywords = dict[str, Any]


class DecideOptions(EvaluateOptions, total=False):
    """Keywords of `decide`: those of `evaluate`, and these."""

    arms: Mapping[str, Keywords]
    """The keywords of `evaluate` that each arm changes, by its name. Other names in a question are models."""
    max_cost: float
    """US dollars, all arms together."""
    max_rollouts: int
    """Default: each row once in each arm."""
    limit: int
    """Only the first rows of the dataset."""
    score: str
    """Score that the questions are about; default: the primary one."""
    say: Callable[[str], object]
    """Called with each line about what can be decided and what was, for example `print`."""


def decide(
    questions: str | Sequence[str],
    agent: AgentLike,
    dataset: DatasetLike = None,
    *,
    scorers: Sequence[str | ScoreFunction] | str | ScoreFunction = (),
    model: str | ModelSpec = "",
    **options: Unpack[DecideOptions],
) -> Decided:
    """Answer questions about models and arms with as few rollouts as it takes, as `osmosis eval decide` does.

    A question is `"A >= B - 0.02"`: `A` and `B` are names of `arms`, or models. An arm without a question is compared
    with the first one. All arms run over the same few rows, and more of them until each question has an answer or the
    rest of the budget would hardly give one. The same call goes on after an interruption. Blocks as `evaluate` does."""
    return block_on(lambda: decide_async(questions, agent, dataset, scorers=scorers, model=model, **options))


async def decide_async(
    questions: str | Sequence[str],
    agent: AgentLike,
    dataset: DatasetLike = None,
    *,
    scorers: Sequence[str | ScoreFunction] | str | ScoreFunction = (),
    model: str | ModelSpec = "",
    **options: Unpack[DecideOptions],
) -> Decided:
    """Run `decide` on the running event loop."""
    if refused := [key for key in options if key in _CHOSEN or key not in DecideOptions.__annotations__]:
        raise TypeError(f"decide() got an unexpected keyword argument {refused[0]!r}")
    shared = {key: value for key, value in options.items() if key in EvaluateOptions.__annotations__}
    own_arms: Mapping[str, Keywords] = options.get("arms", {})
    study_questions = [parse_question(text) for text in ([questions] if isinstance(questions, str) else questions)]
    sides = {label: None for q in study_questions for label in (q.right, q.left)}
    first = next(iter(own_arms), "")
    study_questions += [
        Question(left=label, right=first) for label in own_arms if label not in sides and label != first
    ]
    labels = [*own_arms, *(label for label in sides if label not in own_arms)]
    common = {"agent": agent, "dataset": dataset, "model": model, "scorers": scorers, **shared}
    keywords = {label: {**common, **own_arms.get(label, {"model": label})} for label in labels}
    if not study_questions:
        raise UsageError("nothing is asked", hint='decide("A >= B - 0.02", agent, "data.jsonl")')
    agent_name = agent if isinstance(agent, str) else name_of(agent)[0]
    name = check_name(options.get("name") or slug(f"{agent_name}-{study_questions[0].text}"))
    first_arm: Keywords = {**keywords[labels[0]], "name": name}
    own = [first_arm.pop(key) for key in ("agent", "dataset", "model", "scorers")]
    plan, run_options = read_keywords(own[0], own[1], own[2], own[3], cast("EvaluateOptions", first_arm))
    assert run_options.runs_dir is not None
    for arm in keywords.values():
        arm["dataset"] = plan.dataset  # rows of a program are written once
    objects: list[object] = []
    arms = {label: _describe(keywords[label], objects) for label in labels}
    changes = {
        label: {key: value for key, value in arm.items() if any(arms[k].get(key) != value for k in labels)}
        for label, arm in arms.items()
    }
    most = options.get("max_cost"), options.get("max_rollouts")
    limits = StudyLimits(*most, options.get("limit"), options.get("score"))
    runs = StudyRuns(name, changes, run_options.runs_dir, limits, options.get("say", lambda _: None))
    facts = {"words": [q.text for q in study_questions], "arms": arms, **vars(limits)}
    study = runs.open(study_questions, run_options.dataset(plan), facts, run_options.base_dir)
    if study.due is not None:
        runs.announce(study)
    while study.due is not None:
        for growth in runs.growths(study):
            selection, budget = Selection(rows=growth.rows), Budget(max_cost_usd=growth.left)
            chosen = {"name": growth.run, "selection": selection, "attempts": growth.attempts, "budget": budget}
            run = await evaluate_async(**{**keywords[growth.arm], **chosen, "accept_changes": True})
            growth.error = run.report.stopped
        study = runs.look(study)
    return runs.result(study)


_CHOSEN = ("selection", "attempts", "budget", "baselines", "pilot")
_UNSAVED = ("api_key", "confirm", "watcher", "secrets")


def _describe(keywords: Keywords, objects: list[object]) -> JsonObject:
    """Return the keywords as JSON, without keys and callbacks: what the answers depend on. `objects` collects what has
    no JSON, and tells apart two objects of one name."""

    def describe(value: object) -> object:
        if isinstance(value, Record):
            return value.model_dump(mode="json", exclude_defaults=True)
        if isinstance(value, (list, tuple)):
            return [describe(item) for item in value]
        if isinstance(value, (str, int, float, Path, type(None))):
            return str(value) if isinstance(value, Path) else value
        if isinstance(value, Mapping):
            return {key: describe(item) for key, item in value.items()}
        name, namesakes = name_of(value)[0], [other for other in objects if name_of(other)[0] == name_of(value)[0]]
        number = next((i for i, other in enumerate(namesakes) if other is value), len(namesakes))
        if number == len(namesakes):
            objects.append(value)
        return f"{name} {number + 1}" if number else name

    return {key: describe(value) for key, value in keywords.items() if key not in _UNSAVED}


def slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:60]


def _answer_line(question: Question) -> str:
    between = "" if question.interval is None else " ({:+.3f} to {:+.3f})".format(*question.interval)
    difference = "" if question.difference is None else f", difference {question.difference:+.3f}{between}"
    reason = f", {question.reason}" if question.reason else ""
    return f"{question.text}: {question.answer or 'open'}{difference} on {question.rows:,} rows{reason}"


def _reach(pilot: Pilot, stage: Stage) -> str:
    difference = pilot.detectable(stage.rows, stage.attempts)
    return f"a difference of {difference:.2g} is decided in 4 of 5 cases" if difference else "too few rows to decide"


def _primary(journal: Journal) -> str:
    report = stored_report(journal)
    primary = report.primary.name if report is not None and report.primary is not None else journal.plan().primary
    return primary or REWARD


def _change(before: Sequence[float] | None, after: Sequence[float] | None) -> float:
    return sum(after) / len(after) - sum(before) / len(before) if before and after else 0.0
