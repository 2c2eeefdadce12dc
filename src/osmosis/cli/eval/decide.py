"""`osmosis eval decide`: the runs, and the file of the questions' state; `metrics/decide.py` says what is run next."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from osmosis.base.files import file_sha256, write_json
from osmosis.base.jsonable import JsonObject
from osmosis.cli.core import completion
from osmosis.cli.core.app import takes
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.environment import SecretsFile
from osmosis.cli.core.prompts import agree
from osmosis.cli.core.results import Column, ListResult, NextStep, build_columns
from osmosis.cli.eval.arms import read_arms
from osmosis.cli.eval.run import find_dataset
from osmosis.cli.eval.run_sources import LocalRun
from osmosis.cli.eval.sample_size import scores_by_row
from osmosis.cli.eval.set import SetLine, build_command, run_process
from osmosis.datasets.keys import SelectedRows
from osmosis.datasets.scan import scan_dataset
from osmosis.engine.journal import Journal
from osmosis.engine.rollout_model import REWARD
from osmosis.errors import UsageError, ValidationError
from osmosis.local.quarantine_file import file_around, read
from osmosis.local.run_options import check_name, runs_folder
from osmosis.metrics.decide import answer_questions, order_rows, plan_stages
from osmosis.metrics.intervals import scale_of
from osmosis.metrics.sample_size import Pilot, pilot_of
from osmosis.metrics.significance import ALPHA
from osmosis.records.run.history import EvalSet, SetRun
from osmosis.records.run.plan import Selection
from osmosis.records.run.rollout import Rollout
from osmosis.records.run.study import Question, Stage, Study
from osmosis.workspace.config_file import load_eval_config
from osmosis.workspace.layout import find_workspace, pick_config

HISTORY = 5
"""Newest runs over the dataset that tell which of its rows are settled."""
MOST_ROWS = 10_000
EVEN = 0.25
"""Variance of passing half of the time, the largest there is."""


@dataclass(frozen=True)
class DecideFlags:
    words: Annotated[
        list[str],
        Argument(metavar="[QUESTION]...", help='"A >= B - 0.02": models, or values of arms', show_default=False),
    ] = field(default_factory=list)
    arm: Annotated[
        list[str],
        Option(
            metavar="NAME=VALUE,VALUE",
            help="What to vary: model, config, prompt (names of prompts/NAME.md), a sampling parameter, a variable "
            "that the rollout reads, a key of the config (env.NAME) or of --set. A value without a question is "
            "compared with the first. Repeatable.",
        ),
    ] = field(default_factory=list)
    config: Annotated[
        str | None, Option("--config", "-c", help="Config [default: the only]", autocompletion=completion.eval_configs)
    ] = None
    max_cost: Annotated[float | None, Option(help="Spend at most this many USD, all arms together.")] = None
    max_rollouts: Annotated[int | None, Option(min=2, help="Run at most N [each row once in each arm].")] = None
    limit: Annotated[int | None, Option(min=2, help="Only the first N rows of the dataset.")] = None
    score: Annotated[str | None, Option(help="Score that the questions are about [default: the primary one].")] = None
    name: Annotated[str | None, Option(help="Name of this decision and its runs [default: from the question].")] = None
    secrets_file: SecretsFile = None


@takes(DecideFlags)
def decide(flags: DecideFlags) -> ListResult:
    r"""Answer questions about models and arms with as few rollouts as it takes.

    Says first what can be decided with the rows and the budget. Then all arms run over the same few rows, and more of
    them until each question has an answer, or the rest of the budget would hardly give one. All answers together are
    wrong in at most 5 % of decisions. Each arm differs in one thing from the first values of all of them. After an
    interruption the same command goes on.

    Example:
        osmosis eval decide "qwen3 >= gpt-5-mini - 0.02" --max-cost 20
        osmosis eval decide --arm tools=on,off --arm prompt=task,terse,examples --max-rollouts 2000
        osmosis eval decide "terse >= task" --arm prompt=task,terse --arm temperature=0,1 -c support --json
    """
    ctx = current()
    if flags.max_cost is not None and not 0 < flags.max_cost < math.inf:
        raise UsageError(f"--max-cost must be greater than 0, got {flags.max_cost}")
    workspace = find_workspace(ctx.cwd)
    path = ctx.path(pick_config(workspace, "eval", flags.config))
    config, _ = load_eval_config(path, workspace.root, to_run=True)
    rollout = config.experiment.rollout
    questions, arms = read_arms(flags.words, flags.arm, config, workspace.root / "rollouts" / rollout)
    name = check_name(flags.name or _slug(f"{rollout}-{questions[0].text}"), "--name")
    deciding = Deciding(ctx, flags, workspace.relative(path), name, arms)
    study = deciding.open(questions, find_dataset(ctx, workspace, config, None))
    if study.due is not None:
        deciding.announce(study)
        agree(ctx, "Run them until every question is decided?", "eval.decide", name=name)
    while study.due is not None:
        study = deciding.look(study)
    return deciding.result(study)


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:60]


class Deciding:
    def __init__(
        self, ctx: AppContext, flags: DecideFlags, config: str, name: str, arms: dict[str, JsonObject]
    ) -> None:
        self._ctx, self._flags, self._config, self._name, self._arms = ctx, flags, config, name, arms
        self._folder = runs_folder(ctx.cwd)
        self._path = self._folder.parent / "decisions" / f"{name}.json"
        equal = {label: next(k for k, v in arms.items() if v == own) for label, own in arms.items()}
        self.run_names = {label: f"{name}--{_slug(first)[:34]}" for label, first in equal.items()}
        """Names of the arms' runs; arms that are the same have the same run."""

    def open(self, questions: list[Question], dataset: Path) -> Study:
        """Read the state of this decision, or begin one; raise UsageError when it was begun for something else."""
        facts = asdict(replace(self._flags, name=None, secrets_file=None))
        if self._path.exists():
            study = Study.model_validate_json(self._path.read_bytes())
            if changed := [key for key, value in facts.items() if study.facts.get(key) != value]:
                message = f"{self._name} began with other words ({', '.join(changed)}); its error rate is theirs"
                raise UsageError(message, hint="--name NAME begins another one")
            return study
        rows = SelectedRows()
        scan_dataset(dataset, Selection(limit=self._flags.limit), rows=rows).refuse_bad(dataset)
        aside = read(file_around(self._ctx.cwd)).of([dataset.stem]).held
        usable = [index for key, index in rows.places.items() if key not in aside][:MOST_ROWS]
        most, arms = self._flags.max_rollouts, len(set(self.run_names.values()))
        each = len(usable) if most is None else most // arms
        if not usable or not each:
            message = f"{len(usable)} rows and {most} rollouts are too few for {arms} arms"
            raise ValidationError(message, hint="--limit, --max-rollouts")
        settled = sorted(self._find_settled(file_sha256(dataset)) & set(usable))
        order, stages, planned = order_rows(usable, settled), plan_stages(len(usable), each), facts["max_cost"] is None
        study = Study(questions=questions, order=order, settled=settled, stages=stages, is_planned=planned)
        return study.model_copy(update={"arms": self._arms, "facts": facts})

    def _find_settled(self, sha256: str) -> set[int]:
        """Return the rows that earlier runs tried at least twice and always passed, or never."""
        passed: dict[int, list[bool]] = {}
        files = sorted(self._folder.glob("*/run.json"), key=lambda file: -file.stat().st_mtime)
        runs = [LocalRun(file.parent) for file in files if file.parent.name not in self.run_names.values()]
        alike = [run for run in runs if run.plan.dataset_hash == sha256]
        for run in alike[:HISTORY]:
            for row, scores in scores_by_row(run.outcomes(), run.primary or REWARD).items():
                passed.setdefault(row, []).extend(score >= run.pass_threshold for score in scores)
        return {row for row, tries in passed.items() if len(tries) > 1 and len(set(tries)) == 1}

    def announce(self, study: Study) -> None:
        say, last = self._ctx.output.say, study.stages[-1]
        arms = {self.run_names[label]: changes for label, changes in study.arms.items()}
        for question in study.questions:
            say(f"  {question.text}" + (f": {question.answer}" if question.answer else ""))
        for name, changes in arms.items():
            say(f"  {name}: {', '.join(f'{key} {value}' for key, value in changes.items())}", style="dim")
        settled = f"; {len(study.settled):,} rows are settled by earlier runs" if study.settled else ""
        most = f"{len(arms):,} arms, at most {last.rows:,} rows x {last.attempts} in each"
        say(f"{most}: {len(arms) * last.rollouts:,} rollouts{settled}")
        pilot = Pilot(last.rows, last.attempts, 0.0, EVEN, 0.0, (0.0, 1.0))
        say(f"{_reach(pilot, last)}, if half of the attempts pass; sooner where arms agree")

    def look(self, study: Study) -> Study:
        """Run what the next look needs, and return the study after it."""
        due, say = study.due, self._ctx.output.say
        assert due is not None
        stage = study.stages[due]
        arms = {self.run_names[label]: study.arms[label] for label in study.open_arms}
        self._save(study)
        self._grow(arms, study.order[: stage.rows], stage.attempts)
        if not study.is_planned:
            return self._plan(study, stage)
        first = LocalRun(self._folder / next(iter(arms)))
        score = self._flags.score or first.primary or REWARD
        rollouts = {label: self._read(self.run_names[label]) for label in study.open_arms}
        if silent := [k for k, own in rollouts.items() if not any(score in rollout.scores for rollout in own)]:
            message = f"no rollout of {silent[0]} has a score {score}"
            raise ValidationError(message, hint=f"osmosis eval show {self.run_names[silent[0]]}")
        scores = {label: scores_by_row(own, score) for label, own in rollouts.items()}
        values = [value for rows in scores.values() for row in rows.values() for value in row]
        scale = scale_of((min(values), max(values)), first.score_bounds.get(score))
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
        say(f"look {due + 1} of {len(study.stages)}: {stage.rows:,} rows x {stage.attempts}, {len(arms)} arms")
        for i, row_changes in changes.items():
            q = after.questions[i]
            say(f"  {q.text}: {q.answer or 'open'}, difference {q.difference or 0.0:+.3f}, p {q.p_value or 0.0:.2g}")
            if due == 0:
                pilot = pilot_of([list(scores[side].values()) for side in (q.left, q.right)], row_changes, scale)
                say(f"    by these rows: {_reach(pilot, study.stages[-1])}", style="dim")
        return after

    def _grow(self, arms: Mapping[str, JsonObject], rows: Sequence[int], attempts: int) -> None:
        """Make all attempts that are missing; raise KeyboardInterrupt or ValidationError where it stops before."""
        max_cost, names = self._flags.max_cost, set(self.run_names.values())
        for name, changes in arms.items():
            if not self._count_missing(name, rows, attempts):
                continue
            settings = dict(changes)
            config, model = settings.pop("config", self._config), settings.pop("model", None)
            line = SetLine(SetRun(name, config, model, {}, settings, name), name, None)
            left = None if max_cost is None else max_cost - sum(map(self._cost, names - {name}))
            words = build_command(EvalSet(configs=[config], n=attempts), line, left, self._flags.secrets_file)
            self._ctx.output.say(f"{name}: {len(rows):,} rows x {attempts}", style="dim")
            interrupted, error = run_process(self._ctx, [*words, "--rows", ",".join(map(str, sorted(rows)))])
            if interrupted:
                raise KeyboardInterrupt
            if missing := self._count_missing(name, rows, attempts):
                message = f"run {name} lacks {missing:,} rollouts of this look: {error or 'it stopped'}"
                raise ValidationError(message, hint="the same command goes on; nothing is lost")

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
        if spent and self._flags.max_cost is not None:
            affordable = max(stage.rollouts, int(self._flags.max_cost / spent * stage.rollouts))
            most = affordable if self._flags.max_rollouts is None else min(most, affordable)
        stages = plan_stages(len(study.order), most)
        price = f"${spent / stage.rollouts:.4f} for an attempt in all arms" if spent else "nothing was priced"
        self._ctx.output.say(f"{price}: at most {stages[-1].rows:,} rows x {stages[-1].attempts} in each arm")
        return study.model_copy(update={"stages": stages, "is_planned": True})

    def _save(self, study: Study) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._path, study.model_dump(mode="json"))

    def result(self, study: Study) -> ListResult:
        names = list(dict.fromkeys(self.run_names.values()))
        rollouts = [rollout for name in names for rollout in self._read(name)]
        extra = {
            "name": self._name,
            "runs": self.run_names,
            "rollouts": len(rollouts),
            "planned_rollouts": len(names) * study.stages[-1].rollouts,
            "failed": sum(rollout.failure is not None for rollout in rollouts),
            "cost_usd": sum(map(self._cost, names)),
            "error_rate": ALPHA,
        }
        used = f"{extra['rollouts']:,} of at most {extra['planned_rollouts']:,} rollouts"
        failed = f"; {extra['failed']:,} failed and count as 0" if extra["failed"] else ""
        self._ctx.output.say(f"{used}{failed}; wrong answers in at most {ALPHA:.0%} of decisions")
        items = [{"question": q.text, **q.model_dump(mode="json")} for q in study.questions]
        step = NextStep("look at it row by row", command=f"osmosis eval compare {' '.join(names[:2])}")
        return ListResult(items, COLUMNS, extra=extra, next_steps=[step])


COLUMNS = [
    *build_columns("question=question", "answer=answer"),
    Column("difference", "difference", "right", show="{:+.3f}".format),
    Column("interval", "interval", show=lambda pair: "{:+.3f} to {:+.3f}".format(*pair)),
    *build_columns(">rows=rows", "reason=reason"),
]


def _reach(pilot: Pilot, stage: Stage) -> str:
    difference = pilot.detectable(stage.rows, stage.attempts)
    return f"a difference of {difference:.2g} is decided in 4 of 5 cases" if difference else "too few rows to decide"


def _change(before: Sequence[float] | None, after: Sequence[float] | None) -> float:
    return sum(after) / len(after) - sum(before) / len(before) if before and after else 0.0
