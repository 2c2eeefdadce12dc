"""A rubric run: every record of a file is a recorded rollout, judged by one rubric, through the engine's one loop."""

import inspect
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from osmosis.base.jsonable import describe
from osmosis.base.redact import Redactor
from osmosis.datasets.keys import SelectedRows
from osmosis.datasets.scan import row_hash
from osmosis.engine.agent import AnsweredAgent
from osmosis.engine.evaluate import Evaluation, Observer
from osmosis.engine.journal import Journal
from osmosis.engine.resume import ResumePlan, plan_resume
from osmosis.engine.rubrics.conversations import RubricRecord, digest_of
from osmosis.engine.rubrics.rubric_files import RubricConfig
from osmosis.engine.scoring import run_score
from osmosis.errors import ValidationError
from osmosis.llm.providers import key_variable
from osmosis.records.run.plan import EvalPlan, ModelSpec, Timeouts
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Rollout, Score, Usage
from osmosis.records.run.rows import Row
from osmosis.sdk.judge import Judge, make_question
from osmosis.sdk.types import json_safe
from osmosis.sdk.user_code import in_thread, is_async

SCORE = "rubric"
_RAW = "raw"
_EARLIER = ".runs.jsonl"


@dataclass(frozen=True)
class RubricRun:
    record_index: int
    run_index: int
    status: str
    started_at: str
    completed_at: str
    duration_seconds: float
    score: float | None = None
    explanation: str | None = None
    preview: str | None = None
    error: str | None = None
    raw: object = None
    usage: dict[str, object] = field(default_factory=dict)

    @property
    def scored(self) -> bool:
        return self.score is not None


OnRun = Callable[[RubricRun], None]


@dataclass
class RubricJob:
    config: RubricConfig
    records: Sequence[RubricRecord]
    number: int = 1
    concurrency: int = 8
    function: Callable[..., object] | None = None
    timeout: float | None = None
    environ: Mapping[str, str] | None = None

    @property
    def total(self) -> int:
        return len(self.records) * self.number

    def plan(self) -> EvalPlan:
        info = self.config.model_info
        return EvalPlan(
            name=self.config.id,
            agent="recorded",
            model=ModelSpec.parse(f"{info.get('provider')}/{info.get('model')}"),
            dataset="records",
            attempts=self.number,
            concurrency=self.concurrency,
            score_fns=[SCORE],
            timeouts=Timeouts(agent_s=None, score_s=None),
        )

    def rows(self) -> list[Row]:
        return [Row(index=record.index - 1, data=record.payload, line=record.line) for record in self.records]

    def hashes(self) -> dict[str, str]:
        parts = [self.config.digest()]
        if self.function is not None:
            parts.append(_code_digest(self.function))
        return {"agent": "-".join(parts)}


def runs_folder(report: Path) -> Path:
    return report.with_name(f"{report.stem}.run")


def check_resumable(report: Path) -> None:
    earlier = report.with_name(f"{report.stem}{_EARLIER}")
    if earlier.is_file() and not Journal(runs_folder(report)).exists:
        hint = "run without --resume: everything is judged again, and that file is left untouched"
        raise ValidationError(f"{earlier} was written by an earlier version and cannot be resumed", hint=hint)


def remove_run(report: Path) -> None:
    shutil.rmtree(runs_folder(report), ignore_errors=True)


def judged_already(job: RubricJob, folder: Path) -> int:
    return _compared(job, Journal(folder)).reuse


async def run_rubric(
    job: RubricJob, folder: Path, *, resume: bool = False, on_run: OnRun | None = None
) -> list[RubricRun]:
    journal = Journal(folder, redactor=Redactor([str(job.config.model_info.get("api_key") or "")]))
    journal.lock()
    try:
        if resume:
            comparison = _compared(job, journal)
            if comparison.moved:
                journal.move(comparison.moved)
            journal.drop(comparison.rerun | comparison.retry)
        else:
            for left in (journal.run_path, journal.rollouts_path, journal.report_path):
                left.unlink(missing_ok=True)
        scorer = RecordScorer(job)
        texts = {record.index - 1: record.solution for record in job.records}
        try:
            await Evaluation(
                job.plan(),
                job.rows(),
                AnsweredAgent(texts),
                scorers=[scorer],
                journal=journal,
                observer=_RunObserver(job, on_run),
                hashes=job.hashes(),
            ).run()
        finally:
            await scorer.close()
        return stored_runs(job, journal)
    finally:
        journal.close()


def stored_runs(job: RubricJob, journal: Journal) -> list[RubricRun]:
    records, rows = {record.index - 1: record for record in job.records}, _selected(job)
    runs = [
        _run_of(rollout, records[rows.places[rollout.row_key or ""]])
        for rollout in journal.rollouts()
        if rollout.row_key in rows.places and rollout.attempt < job.number
    ]
    return sorted(runs, key=lambda run: (run.record_index, run.run_index))


class RecordScorer:
    name = SCORE
    bounds = None

    def __init__(self, job: RubricJob) -> None:
        self._job = job
        self._records = {record.index - 1: record for record in job.records}
        self._judge: Judge | None = None

    async def score(self, rollout: Rollout, row: Row) -> list[Score]:
        async def ask() -> Score:
            record = self._records[row.index]
            if self._job.function is not None:
                value, explanation, raw = await ask_function(self._job.config, record, self._job.function)
                usage = None
            else:
                config = self._job.config
                if self._judge is None:
                    self._judge = Judge(config.judge_info(), timeout=self._job.timeout, environ=self._job.environ)
                verdict = await self._judge.ask(
                    make_question(
                        config.rubric,
                        record.solution,
                        config.judge_info(),
                        metadata=record.judge_metadata(),
                        bounds=bounds_of(config, record),
                        **_texts(config, record),
                    )
                )
                value, explanation, raw, usage = verdict.score, verdict.explanation, verdict.raw, verdict.usage
            rollout.info[_RAW] = json_safe(raw, _RAW)
            return Score(name=self.name, value=value, reason=explanation, usage=usage)

        started = time.monotonic()
        scores = await run_score(self.name, ask, None)
        scores[0].duration_ms = (time.monotonic() - started) * 1000
        return scores

    async def close(self) -> None:
        if self._judge is not None:
            await self._judge.close()


async def ask_function(
    config: RubricConfig, record: RubricRecord, function: Callable[..., Any]
) -> tuple[float, str | None, object]:
    parameters = inspect.signature(function).parameters
    judge_like = "rubric" in parameters or "model_info" in parameters
    if "extra_info" not in parameters and any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        judge_like = True
    arguments = _as_judge(config, record) if judge_like else _as_function(config, record)
    if is_async(function):
        return _read(await function(**arguments))
    return _read(await in_thread(function, **arguments))


class _RunObserver(Observer):
    def __init__(self, job: RubricJob, on_run: OnRun | None) -> None:
        self._records = {record.index: record for record in job.records}
        self._on_run = on_run

    def rollout(self, rollout: Rollout, running: Report | None) -> None:
        if self._on_run is not None:
            self._on_run(_run_of(rollout, self._records[rollout.row_index + 1]))


def _selected(job: RubricJob) -> SelectedRows:
    return SelectedRows.of((row.index, row_hash(row.data)) for row in job.rows())


def _compared(job: RubricJob, journal: Journal) -> ResumePlan:
    return plan_resume(journal, _selected(job), job.plan(), job.hashes(), retry_failed=())


def _run_of(rollout: Rollout, record: RubricRecord) -> RubricRun:
    score = rollout.scores.get(SCORE) or Score(name=SCORE, failure=rollout.failure)
    failure = score.failure
    flat = " ".join(record.solution.split())
    return RubricRun(
        record_index=record.index,
        run_index=rollout.attempt + 1,
        status="error" if failure else "success",
        started_at=rollout.started_at.isoformat(),
        completed_at=(rollout.started_at + timedelta(milliseconds=score.duration_ms)).isoformat(),
        duration_seconds=score.duration_ms / 1000,
        score=score.value,
        explanation=score.reason,
        preview=flat if len(flat) <= 140 else f"{flat[:137]}...",
        error=failure.message.removeprefix(f"{SCORE} raised ") if failure else None,
        raw=rollout.info.get(_RAW),
        usage=(score.usage or Usage()).model_dump(),
    )


def _code_digest(function: Callable[..., object]) -> str:
    try:
        return digest_of(inspect.getsource(inspect.unwrap(function)))
    except (OSError, TypeError):
        return digest_of(getattr(function, "__qualname__", type(function).__qualname__))


def _texts(config: RubricConfig, record: RubricRecord) -> dict[str, str | None]:
    return {
        "ground_truth": record.ground_truth or config.ground_truth,
        "original_input": record.original_input or config.original_input,
    }


def bounds_of(config: RubricConfig, record: RubricRecord) -> tuple[float | None, float | None]:
    high = record.score_max if record.score_max is not None else config.score_max
    return (record.score_min if record.score_min is not None else config.score_min), high


def _as_function(config: RubricConfig, record: RubricRecord) -> dict[str, object]:
    info = config.judge_info()
    low, high = bounds_of(config, record)
    extra: dict[str, object] = {
        **(record.extra_info or {}),
        "provider": info.get("provider"),
        "model": info.get("model"),
        "rubric": config.rubric,
        "score_min": 0.0 if low is None else low,
        "score_max": 1.0 if high is None else high,
        "system_prompt": info.get("system_prompt"),
        "original_input": record.original_input or config.original_input,
        "model_info": info,
        "metadata": record.judge_metadata(),
        "dataset_metadata": record.metadata,
    }
    for key in ("api_key", "api_base", "timeout"):
        if info.get(key):
            extra[key] = info[key]
    if not info.get("api_key") and not info.get("api_base") and info.get("provider") != "offline":
        extra["api_key_env"] = info.get("api_key_env") or key_variable(str(info.get("provider")).lower())
    return {
        "solution_str": record.solution,
        "ground_truth": record.ground_truth or config.ground_truth,
        "extra_info": {key: value for key, value in extra.items() if value is not None},
    }


def _as_judge(config: RubricConfig, record: RubricRecord) -> dict[str, object]:
    low, high = bounds_of(config, record)
    return {
        **_texts(config, record),
        "rubric": config.rubric,
        "solution_str": record.solution,
        "model_info": config.judge_info(),
        "metadata": record.judge_metadata(),
        "score_min": low,
        "score_max": high,
        "return_details": True,
    }


def _read(result: object) -> tuple[float, str | None, object]:
    explanation, raw = None, None
    if isinstance(result, dict):
        explanation, raw, result = result.get("explanation"), result.get("raw"), result.get("score")
    if isinstance(result, bool) or not isinstance(result, (int, float)) or not math.isfinite(result):
        raise TypeError(f"the rubric function returned {describe(result)}; expected a finite number")
    return float(result), explanation, raw
