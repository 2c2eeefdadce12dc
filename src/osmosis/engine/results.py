"""The document of `-o results.json`: `config`, `summary`, `rows`, key for key as published, with more keys beside.

Written row by row: of a run of up to `MOST_GATHERED` rollouts from what was gathered while they were stored, else from
the journal, so a large run needs no more memory here than a small one; at once or not at all, so that a half document
is never read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import orjson

from osmosis._version import __version__
from osmosis.base.files import replacing
from osmosis.base.json_types import JsonObject
from osmosis.errors import ValidationError
from osmosis.records.plan import EvalPlan
from osmosis.records.report import Interval, Report, ScoreReport
from osmosis.records.rollout import Rollout, RolloutStatus

from .ended import REWARD
from .journal import Journal

_SUCCESS, _SKIPPED = RolloutStatus.SUCCESS.value, RolloutStatus.SKIPPED.value  # `value` is two calls, once a rollout


MOST_GATHERED = 20_000
"""Rollouts whose part of the document is kept in memory, some 700 bytes each."""

Part = tuple[bytes, "dict[str, float | None] | None"]
"""A run as the document has it, and its scores; None for one that was skipped."""


class Gathered:
    """The runs of the document, gathered while the journal stores them: reading a line costs more than making it."""

    def __init__(self, journal: Journal, plan: EvalPlan, *, most: int = MOST_GATHERED) -> None:
        self._journal = journal
        self._most = most
        self._plan = plan
        self._parts: list[tuple[int, int, Part]] = []
        journal.heard = self._heard

    def in_order(self) -> Iterator[tuple[int, Part]] | None:
        """Every run of the journal with its row, by row, then attempt; None when not all of them were gathered."""
        if self._journal.written_here != len(self._parts):
            return None
        ordered = sorted(self._parts, key=lambda one: one[:2])
        return ((row, part) for row, _, part in ordered)

    def _heard(self, rollout: Rollout, line: bytes, as_is: bool) -> None:
        if len(self._parts) == self._most:
            self._parts.clear()
            self._journal.heard = None
            return
        fields = vars(rollout)
        values = _values_of(fields) if as_is else None
        if values is None:
            run = run_part(orjson.loads(line), self._plan)
        else:
            run = _run_part(fields, fields["status"]._value_, vars(fields["usage"]), values, self._plan)
        self._parts.append((fields["row_index"], fields["attempt"], _part(run)))


def _values_of(fields: JsonObject) -> dict[str, float | None] | None:
    """The scores of a rollout's fields; None where something failed."""
    if fields["failure"] is not None:
        return None
    values = {}
    for name, score in fields["scores"].items():
        told = vars(score)
        if told["failure"] is not None:
            return None
        values[name] = told["value"]
    return values


def _part(run: JsonObject) -> Part:
    counted = None if run["status"] == _SKIPPED else _values(run) if "reward" in run else run["scores"]
    return orjson.dumps(run), counted


def check_output(path: Path) -> None:
    """Raises before anything is spent when the document could not be written there."""
    if path.is_dir():
        raise ValidationError(f"-o {path} is a folder", hint=f"give a file: {path / 'results.json'}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValidationError(f"-o {path}: {error.strerror}", hint="choose another file") from error
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise ValidationError(f"-o {path} cannot be written", hint="choose another file")


def write_results(
    path: Path, journal: Journal, plan: EvalPlan, report: Report, gathered: Gathered | None = None, **more: object
) -> None:
    """The document of this run; `more` are further top-level keys."""
    safe = journal.redactor.data  # the rows come from the journal, where nothing secret is
    with replacing(path, durable=True) as out:
        out.write(b'{"config":' + orjson.dumps(safe(config_part(journal, plan))))
        out.write(b',"summary":' + orjson.dumps(safe(summary_part(report, plan))))
        out.write(b',"rows":[')
        parts = gathered.in_order() if gathered is not None else None
        if parts is None:
            parts = ((line["row_index"], _part(run_part(line, plan))) for line in journal.in_order())
        _write_rows(out, parts, plan)
        out.write(b"]")
        for key, value in more.items():
            out.write(b"," + orjson.dumps(key) + b":" + orjson.dumps(safe(value)))
        out.write(b"}\n")


def config_part(journal: Journal, plan: EvalPlan) -> dict[str, object]:
    return {
        "model": plan.model.name,
        "n_runs": plan.attempts,
        "pass_threshold": plan.pass_threshold,
        "eval_fns": plan.score_fns,
        "agent": plan.agent,
        "dataset": plan.dataset,
        "dataset_sha256": plan.dataset_hash,
        "base_url": plan.model.base_url,
        "sampling": plan.model.params,
        "selection": plan.selection.to_dict(),
        "concurrency": plan.concurrency,
        "name": plan.name,
        "journal": str(journal.folder),
        "version": __version__,
        "provenance": {k: v for k, v in plan.provenance.items() if k != "git"}
        | {"git": {k: v for k, v in plan.provenance.get("git", {}).items() if k != "diff"}},
    }


def summary_part(report: Report, plan: EvalPlan) -> dict[str, object]:
    """The figures; `eval_fns` maps each score function to its own, `reward` has those of the agent's own reward."""
    asked = [score for score in report.scores if not _is_own(score.name, plan)]
    own = next((score for score in report.scores if _is_own(score.name, plan)), None)
    return {
        "total_rows": report.rows,
        "total_runs": report.total,
        "eval_fns": {score.name: score_part(score) for score in asked},
        "total_tokens": report.usage.total_tokens,
        "total_duration_ms": report.duration_ms,
        "completed_runs": report.completed,
        "succeeded": report.succeeded,
        "failed": report.failed,
        "skipped": report.skipped,
        "coverage": report.coverage,
        "prompt_tokens": report.usage.prompt_tokens,
        "completion_tokens": report.usage.completion_tokens,
        "cost_usd": report.usage.cost_usd,
        "judge_tokens": report.judge_usage.total_tokens,
        "judge_cost_usd": report.judge_usage.cost_usd,
        "latency_ms": report.latency_ms.to_dict() if report.latency_ms else None,
        "tokens_per_run": report.tokens.to_dict() if report.tokens else None,
        "failures": [f.to_dict() for f in report.failures],
        "stopped": report.stopped,
        "answer_issues": [issue.to_dict() for issue in report.answer_issues],
        "groups": [
            {
                "column": group.column,
                "value": group.value,
                "rows": group.rows,
                "eval_fns": {score.name: score_part(score) for score in group.scores},
            }
            for group in report.groups
        ],
        **({"reward": score_part(own)} if own else {}),
    }


def _is_own(name: str, plan: EvalPlan) -> bool:
    """Whether a score is the reward that the agent brought itself, and no function that was asked for."""
    return name == REWARD and name not in plan.score_fns


def score_part(score: ScoreReport) -> dict[str, object]:
    """One score function's figures, with `pass_at_<k>` and `pass_hat_<k>` as keys of their own."""
    part: dict[str, object] = {"mean": score.mean, "std": score.std, "min": score.min, "max": score.max}
    for point in score.pass_at_k:
        part[f"pass_at_{point.k}"] = point.value
    for point in score.pass_hat_k:
        part[f"pass_hat_{point.k}"] = point.value
    part.update(
        median=score.median,
        mean_scored=score.mean_scored,
        mean_ci=_pair(score.mean_interval),
        pass_rate=score.pass_rate,
        pass_rate_ci=_pair(score.pass_rate_interval),
        passed=score.passed,
        scored=score.scored,
        failed=score.failed,
        flake_rate=score.flake_rate,
        pass_at_k_ci={str(p.k): _pair(p.interval) for p in score.pass_at_k},
        pass_hat_k_ci={str(p.k): _pair(p.interval) for p in score.pass_hat_k},
        bounds=None if score.bounds is None else list(score.bounds),
        reduced={one.name: one.value for one in score.reduced},
        reduced_ci={one.name: _pair(one.interval) for one in score.reduced},
    )
    return part


def _pair(interval: Interval | None) -> list[float] | None:
    return [interval.low, interval.high] if interval else None


def _write_rows(out: IO[bytes], parts: Iterable[tuple[int, Part]], plan: EvalPlan) -> None:
    row, runs, between = None, list[Part](), b""
    rates = _PassRates(plan)
    for index, part in parts:
        if row is not None and index != row:
            out.write(between + _row(row, runs, rates))
            runs, between = [], b","
        row = index
        runs.append(part)
    if row is not None:
        out.write(between + _row(row, runs, rates))


def _row(index: int, runs: list[Part], rates: _PassRates) -> bytes:
    told = rates.of([counted for _, counted in runs if counted is not None])
    return b'{"row_index":%d,"runs":[%b],"pass_rate":%b}' % (
        index,
        b",".join([text for text, _ in runs]),
        orjson.dumps(told),
    )


class _PassRates:
    """The pass rates of one row: they count as the summary's do, failures as no pass, skipped runs nowhere."""

    def __init__(self, plan: EvalPlan) -> None:
        self._functions = plan.score_fns
        self._threshold = plan.pass_threshold
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}
        """What is told, by the scores that there are: nearly all rows have the same."""

    def of(self, counted: list[dict[str, float | None]]) -> dict[str, float]:
        """Of the scores of each run that counts."""
        if not counted:
            return {}
        found = tuple(counted[0] if len(counted) == 1 else dict.fromkeys(name for one in counted for name in one))
        names = self._names.get(found)
        if names is None:
            names = self._names[found] = self._told(found)
        rates = {}
        for name in names:
            passed = 0
            for scores in counted:
                value = scores.get(name)
                if value is not None and value >= self._threshold:
                    passed += 1
            rates[name] = passed / len(counted)
        return rates

    def _told(self, found: tuple[str, ...]) -> tuple[str, ...]:
        whole = [
            name for name in self._functions if name in found or not any(one.startswith(f"{name}.") for one in found)
        ]
        return tuple(dict.fromkeys([*whole, *found]))


def _values(run: JsonObject) -> dict[str, float | None]:
    """Every score of a run, its own reward under that name."""
    return {**run["scores"], REWARD: run["reward"]}


def run_part(line: JsonObject, plan: EvalPlan) -> dict[str, object]:
    """One rollout; `error` only when there is one, `reward` when it is the agent's own. A failed score is null."""
    scores, failure = line.get("scores") or {}, line.get("failure")
    values, broken = {}, {}
    for name, score in scores.items():
        values[name] = score.get("value")
        if score.get("failure"):
            broken[name] = score["failure"]["message"]
    run = _run_part(line, line["status"], line.get("usage") or {}, values, plan)
    if failure:
        run["error"] = failure["message"]
        run["failure"] = {"phase": failure["phase"], "category": failure["category"]}
    if broken:
        run["score_errors"] = broken
    return run


def _run_part(
    line: JsonObject, status: str, usage: JsonObject, values: dict[str, float | None], plan: EvalPlan
) -> dict[str, object]:
    """What every rollout has, failed or not."""
    prompt, completion = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    own = REWARD in values and _is_own(REWARD, plan)
    reward = values.pop(REWARD) if own else None
    run: dict[str, object] = {
        "run_index": line["attempt"],
        "success": status == _SUCCESS,
        "scores": values,
        "duration_ms": line.get("duration_ms", 0.0),
        "tokens": prompt + completion,
        "status": status,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "cost_usd": usage.get("cost_usd"),
        "llm_calls": len(line.get("calls") or ()),
        "tool_calls": line.get("num_tool_calls", 0),
        "finish_reason": line.get("finish_reason"),
        "rollout_id": line.get("rollout_id"),
    }
    if own:
        run["reward"] = reward
    return run
