"""Questions about arms, answered by runs that grow until they are: the runs, and a file with the state of the
questions. What is run next and what it answers is `metrics/decide.py`."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from osmosis.metrics import decide as studies
from osmosis.metrics.intervals import ALPHA
from osmosis.metrics.planning import scores_by_row
from osmosis.records.base import Record
from osmosis.records.run.plan import Budget, ModelSpec, Selection
from osmosis.records.run.rollout import Rollout
from osmosis.records.run.study import Question, Study, StudyLimits


@dataclass(frozen=True)
class Decided:
    name: str
    questions: list[Question]
    runs: Mapping[str, str]  # name of the run of each arm; arms that are the same have the same run
    rollouts: int
    planned_rollouts: int
    failed: int
    cost_usd: float
    error_rate: float = ALPHA  # chance of any wrong answer among all questions, at most

    def to_dict(self) -> JsonObject:
        return {name: value for name, value in vars(self).items() if name != "questions"}

    def __str__(self) -> str:
        failed = f"; {self.failed:,} failed and count as 0" if self.failed else ""
        used = f"{self.rollouts:,} of at most {self.planned_rollouts:,} rollouts{failed}"
        lines = [_answer_line(question) for question in self.questions]
        return "\n".join([*lines, f"{used}; wrong answers in at most {self.error_rate:.0%} of decisions"])


class StudyRuns:
    """The journals and the state of a study on this machine."""

    def __init__(self, runs: Path, say: Callable[[str], object]) -> None:
        self._folder, self._say = runs, say

    def rollouts(self, run: str) -> list[Rollout]:
        journal = Journal(self._folder / run)
        return list(journal.rollouts()) if journal.exists else []

    def score_facts(self, run: str) -> studies.ScoreFacts:
        journal = Journal(self._folder / run)
        report, plan = stored_report(journal), journal.plan()
        primary = report.primary.name if report is not None and report.primary is not None else plan.primary
        return primary or REWARD, plan.score_bounds

    def open(self, draft: Study, dataset: Path, cwd: Path) -> Study:
        """Read the state of this decision, or begin one; raise UsageError when it was begun for something else."""
        path = self._path(draft)
        if path.exists():
            self.study = Study.model_validate_json(path.read_bytes())
            studies.check_words(self.study, draft)
            return self.study
        rows = SelectedRows()
        scan_dataset(dataset, Selection(limit=draft.limits.limit), rows=rows).refuse_bad(dataset)
        aside = read(file_around(cwd)).of([dataset.stem]).active
        usable = [index for key, index in rows.places.items() if key not in aside]
        study = studies.begin_study(draft, usable)
        self.study = studies.settle_rows(study, self._list_history(file_sha256(dataset), set(study.runs.values())))
        return self.study

    def _list_history(self, sha256: str, own: Collection[str]) -> list[studies.PastRun]:
        files = sorted(self._folder.glob("*/run.json"), key=lambda file: -file.stat().st_mtime)
        journals = [Journal(file.parent) for file in files if file.parent.name not in own]
        alike = [(journal, plan) for journal in journals if (plan := journal.plan()).dataset_hash == sha256]
        return [
            (scores_by_row(journal.rollouts(), self.score_facts(journal.folder.name)[0]), plan.pass_threshold)
            for journal, plan in alike[: studies.HISTORY]
        ]

    def growths(self) -> Iterator[studies.Growth]:
        """Yield what an arm lacks for the next look, to be run before the next one is taken, until every question has
        an answer; raise ValidationError where it was not run."""
        self._save(self.study)
        while self.study.due is not None:
            for growth in studies.list_growths(self.study, self):
                self._say(f"{growth.run}: {len(growth.rows):,} rows x {growth.attempts}")
                yield growth
                left = studies.count_missing(self.rollouts(growth.run), growth.rows, growth.attempts)
                if left:
                    missing, reason = sum(left.values()), growth.error or "it stopped"
                    message = f"run {growth.run} lacks {missing:,} rollouts of this look: {reason}"
                    raise ValidationError(message, hint="the same command goes on; nothing is lost")
            self.study = studies.take_look(self.study, self, self._say)
            self._save(self.study)

    def result(self) -> Decided:
        study = self.study
        rollouts = [rollout for name in dict.fromkeys(study.runs.values()) for rollout in self.rollouts(name)]
        failed = sum(rollout.failure is not None for rollout in rollouts)
        sums = len(rollouts), study.planned_rollouts, failed, studies.cost_of(rollouts)
        return Decided(study.name, study.questions, study.runs, *sums)

    def _path(self, study: Study) -> Path:
        return self._folder.parent / "decisions" / f"{study.name}.json"

    def _save(self, study: Study) -> None:
        path = self._path(study)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, study.model_dump(mode="json"))


Keywords = dict[str, Any]


class DecideOptions(EvaluateOptions, total=False):
    """Keywords of `decide`: those of `evaluate`, and these."""

    arms: Mapping[str, Keywords]
    """The keywords of `evaluate` that each arm changes, by its name. Other names in a question are models."""
    max_cost: float  # US dollars, all arms together
    max_rollouts: int  # default: each row once in each arm
    limit: int  # only the first rows of the dataset
    score: str  # score that the questions are about; default: the primary one
    say: Callable[[str], object]  # called with each line about what can be decided and what was, for example `print`


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
    study_questions = [
        studies.parse_question(text) for text in ([questions] if isinstance(questions, str) else questions)
    ]
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
    name = check_name(options.get("name") or studies.slug(f"{agent_name}-{study_questions[0].text}"))
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
    limits = StudyLimits.model_validate({key: options.get(key) for key in StudyLimits.model_fields})
    say: Callable[[str], object] = options.get("say", lambda _: None)
    runs = StudyRuns(run_options.runs_dir, say)
    facts = {"words": [q.text for q in study_questions], "arms": arms, **limits.model_dump()}
    draft = Study(name=name, questions=study_questions, arms=changes, limits=limits, facts=facts)
    study = runs.open(draft, run_options.dataset(plan), run_options.base_dir)
    for line in studies.announce(study) if study.due is not None else ():
        say(line)
    for growth in runs.growths():
        selection, budget = Selection(rows=growth.rows), Budget(max_cost_usd=growth.left)
        chosen = {"name": growth.run, "selection": selection, "attempts": growth.attempts, "budget": budget}
        run = await evaluate_async(**{**keywords[growth.arm], **chosen, "accept_changes": True})
        growth.error = run.report.stopped
    return runs.result()


_CHOSEN = ("selection", "attempts", "budget", "baselines", "pilot")
_UNSAVED = ("api_key", "confirm", "watcher", "secrets")


def _describe(keywords: Keywords, objects: list[object]) -> JsonObject:
    """Return as JSON what the answers depend on; `objects` collects what has no JSON."""

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


def _answer_line(question: Question) -> str:
    between = "" if question.interval is None else " ({:+.3f} to {:+.3f})".format(*question.interval)
    difference = "" if question.difference is None else f", difference {question.difference:+.3f}{between}"
    reason = f", {question.reason}" if question.reason else ""
    return f"{question.text}: {question.answer or 'open'}{difference} on {question.rows:,} rows{reason}"
