"""The document of `-o results.json`: `config`, `summary`, `rows`, key for key as published, with more keys beside.

At once or not at all, so that a half document is never read. What stands in its rows is made in `result_rows`.
"""

from __future__ import annotations

import os
from pathlib import Path

import orjson

from osmosis._version import __version__
from osmosis.base.files import replacing
from osmosis.errors import ValidationError
from osmosis.records.plan import EvalPlan
from osmosis.records.report import Interval, Report, ScoreReport

from .journal import Journal
from .result_rows import Gathered, is_own, write_rows


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
        write_rows(out, journal, plan, gathered)
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
    asked = [score for score in report.scores if not is_own(score.name, plan)]
    own = next((score for score in report.scores if is_own(score.name, plan)), None)
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
