"""Judges records with a rubric: several at once, every result on disk before it counts, resumable.

A run that failed says why and is no score. The report is made from the results file alone, so an interrupted
session loses nothing that was paid for.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from osmosis.errors import OsmosisError, ValidationError
from osmosis.records.base import utc_now
from osmosis.records.rollout import Usage
from osmosis.sdk.classify import describe
from osmosis.sdk.deadline import contained
from osmosis.sdk.judge import Judge, collect_judge_usage, make_question
from osmosis.sdk.judge_model import key_variable
from osmosis.sdk.signatures import is_async
from osmosis.sdk.threads import in_thread
from osmosis.sdk.types import json_safe

from .conversations import RubricRecord, digest_of
from .rubric_files import RubricConfig

OnRun = Callable[["RubricRun"], None]


@dataclass(frozen=True)
class RubricRun:
    """One judgement of one record."""

    record_index: int
    run_index: int
    """One-based."""
    status: str
    """`success` or `error`."""
    started_at: str
    completed_at: str
    duration_seconds: float
    score: float | None = None
    explanation: str | None = None
    preview: str | None = None
    error: str | None = None
    raw: Any = None
    usage: dict[str, Any] = field(default_factory=dict)
    digest: str = ""
    """Of the rubric and the record it belongs to."""

    @property
    def scored(self) -> bool:
        return self.status == "success" and self.score is not None


class RunFile:
    """The results file: one JSON line per run, on disk before `append` returns."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        self.runs: dict[tuple[int, int], RubricRun] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if resume and path.is_file():
            self._read()
        self._handle = path.open("ab" if resume else "wb")

    def _read(self) -> None:
        whole = self.path.read_bytes()
        good = whole.rfind(b"\n") + 1
        if good < len(whole):
            # A crash in the middle of a line: what follows must not be glued to it.
            os.truncate(self.path, good)
        for line in whole[:good].splitlines():
            try:
                run = RubricRun(**json.loads(line))
            except (ValueError, TypeError) as exc:
                raise ValidationError(f"{self.path} is no results file of a rubric run: {exc}") from exc
            self.runs[(run.record_index, run.run_index)] = run

    def append(self, run: RubricRun) -> None:
        """Keeps a run, durably."""
        line = json.dumps(run.__dict__, ensure_ascii=False, default=str, allow_nan=False)
        self._handle.write(line.encode() + b"\n")
        self._handle.flush()
        os.fsync(self._handle.fileno())
        self.runs[(run.record_index, run.run_index)] = run

    def close(self) -> None:
        self._handle.close()


Scorer = Callable[[RubricRecord], Awaitable[tuple[float, "str | None", Any, Usage]]]
"""One judgement: score, explanation, raw, usage; raises when there is none."""


@dataclass
class RubricJob:
    """What is to be judged, and by what."""

    config: RubricConfig
    records: Sequence[RubricRecord]
    number: int = 1
    """Runs per record."""
    concurrency: int = 8
    function: Callable[..., Any] | None = None
    """A custom rubric function in place of the judge."""
    timeout: float | None = None
    """Seconds for one call of the judge."""
    environ: Mapping[str, str] | None = None
    """Where the judge's key is looked up; the process's environment by default."""

    def missing(self, done: dict[tuple[int, int], RubricRun]) -> list[tuple[RubricRecord, int]]:
        """What has no scored run yet that still belongs to this rubric and record."""
        wanted = [(record, run) for record in self.records for run in range(1, self.number + 1)]
        return [
            (record, run)
            for record, run in wanted
            if not ((found := done.get((record.index, run))) and found.scored and found.digest == self.digest(record))
        ]

    def digest(self, record: RubricRecord) -> str:
        parts = [self.config.digest(), record.digest()]
        if self.function is not None:
            parts.append(_code_digest(self.function))
        return "-".join(parts)


def _code_digest(function: Callable[..., Any]) -> str:
    try:
        return digest_of(inspect.getsource(inspect.unwrap(function)))
    except (OSError, TypeError):
        return digest_of(getattr(function, "__qualname__", type(function).__qualname__))


async def run_rubric(job: RubricJob, results: RunFile, *, on_run: OnRun | None = None) -> list[RubricRun]:
    """Judges what is missing; all runs in order of record and run. Cancelling keeps what is finished."""
    waiting = job.missing(results.runs)
    if job.function is not None:
        await _run_all(job, waiting, _custom(job), results, on_run)
    elif waiting:
        info = job.config.judge_info()
        async with Judge(info, timeout=job.timeout, environ=job.environ) as judge:
            await _run_all(job, waiting, _judged(job, judge), results, on_run)
    indices = [(record.index, run) for record in job.records for run in range(1, job.number + 1)]
    return [results.runs[key] for key in indices if key in results.runs]


async def _run_all(
    job: RubricJob,
    waiting: list[tuple[RubricRecord, int]],
    score: Scorer,
    results: RunFile,
    on_run: OnRun | None,
) -> None:
    queue = iter(waiting)

    async def worker() -> None:
        for record, number in queue:
            run = await _one(record, number, score, job.digest(record))
            results.append(run)
            if on_run is not None:
                on_run(run)

    workers = [asyncio.ensure_future(worker()) for _ in range(max(1, min(job.concurrency, len(waiting))))]
    try:
        await asyncio.gather(*workers)
    finally:
        for one in workers:
            one.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def _one(record: RubricRecord, number: int, score: Scorer, digest: str) -> RubricRun:
    started, clock = utc_now(), time.monotonic()
    common: dict[str, Any] = {"record_index": record.index, "run_index": number, "digest": digest}
    common["preview"] = _preview(record.solution)
    try:
        value, explanation, raw, usage = await contained(score(record))
    except Exception as exc:  # noqa: BLE001 - one run: the judge or a person's function failed, the others go on
        error = exc.message if isinstance(exc, OsmosisError) else describe(exc)
        return RubricRun(status="error", error=error, **common, **_times(started, clock))
    return RubricRun(
        status="success",
        score=value,
        explanation=explanation,
        raw=json_safe(raw, "raw"),
        usage=usage.model_dump(),
        **common,
        **_times(started, clock),
    )


def _times(started: datetime, clock: float) -> dict[str, Any]:
    return {
        "started_at": started.isoformat(),
        "completed_at": utc_now().isoformat(),
        "duration_seconds": time.monotonic() - clock,
    }


def _judged(job: RubricJob, judge: Judge) -> Scorer:
    config = job.config

    async def score(record: RubricRecord) -> tuple[float, str | None, Any, Usage]:
        question = make_question(
            config.rubric,
            record.solution,
            judge.info,
            ground_truth=record.ground_truth or config.ground_truth,
            original_input=record.original_input or config.original_input,
            metadata=record.judge_metadata(),
            bounds=bounds_of(config, record),
        )
        verdict = await judge.ask(question)
        return verdict.score, verdict.explanation, verdict.raw, verdict.usage

    return score


def bounds_of(config: RubricConfig, record: RubricRecord) -> tuple[float | None, float | None]:
    """The record's bounds beat the config's."""
    low = record.score_min if record.score_min is not None else config.score_min
    high = record.score_max if record.score_max is not None else config.score_max
    return low, high


async def judge_once(job: RubricJob, record: RubricRecord) -> tuple[float, str | None, Any, Usage]:
    """One judgement by the job's function; raises what the function raises."""
    return await _custom(job)(record)


def _custom(job: RubricJob) -> Scorer:
    function = job.function
    assert function is not None
    parameters = inspect.signature(function).parameters
    judge_like = "rubric" in parameters or "model_info" in parameters
    if "extra_info" not in parameters and any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        judge_like = True

    async def score(record: RubricRecord) -> tuple[float, str | None, Any, Usage]:
        arguments = _as_judge(job.config, record) if judge_like else _as_function(job.config, record)
        with collect_judge_usage() as spent:
            if is_async(function):
                result = await function(**arguments)
            else:
                result = await in_thread(function, **arguments)
        value, explanation, raw = _read(result)
        return value, explanation, raw, spent.usage

    return score


def _as_function(config: RubricConfig, record: RubricRecord) -> dict[str, Any]:
    info = config.judge_info()
    low, high = bounds_of(config, record)
    extra: dict[str, Any] = {
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


def _as_judge(config: RubricConfig, record: RubricRecord) -> dict[str, Any]:
    low, high = bounds_of(config, record)
    return {
        "rubric": config.rubric,
        "solution_str": record.solution,
        "model_info": config.judge_info(),
        "ground_truth": record.ground_truth or config.ground_truth,
        "original_input": record.original_input or config.original_input,
        "metadata": record.judge_metadata(),
        "score_min": low,
        "score_max": high,
        "return_details": True,
    }


def _read(result: Any) -> tuple[float, str | None, Any]:
    explanation, raw = None, None
    if isinstance(result, dict):
        explanation, raw, result = result.get("explanation"), result.get("raw"), result.get("score")
    if isinstance(result, bool) or not isinstance(result, (int, float)) or not math.isfinite(result):
        raise TypeError(f"the rubric function returned {result!r}; expected a finite number")
    return float(result), explanation, raw


def _preview(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 140 else f"{flat[:137]}..."
