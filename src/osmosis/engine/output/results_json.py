"""The document of `-o results.json`: `config`, `summary`, `rows`, with the published keys and more."""

import os
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import IO

import orjson

from osmosis._version import __version__
from osmosis.base.files import replacing
from osmosis.base.jsonable import JsonObject
from osmosis.engine.journal import Journal
from osmosis.engine.rollout_model import REWARD
from osmosis.errors import ValidationError
from osmosis.metrics.intervals import pair_of
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.report import Report, ScoreReport
from osmosis.records.run.rollout import RolloutStatus


def check_output(path: Path) -> None:
    if path.is_dir():
        raise ValidationError(f"-o {path} is a folder", hint=f"give a file: {path / 'results.json'}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValidationError(f"-o {path}: {error.strerror}", hint="choose another file") from error
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise ValidationError(f"-o {path} cannot be written", hint="choose another file")


def write_results(path: Path, journal: Journal, plan: EvalPlan, report: Report, **more: object) -> None:
    safe = journal.redactor.data  # the rows come from the journal, where nothing secret is
    with replacing(path, durable=True) as out:
        out.write(b'{"config":' + orjson.dumps(safe(config_part(journal, plan))))
        out.write(b',"summary":' + orjson.dumps(safe(summary_part(report, plan))))
        out.write(b',"rows":[')
        write_rows(out, journal, plan)
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
    scores = [score for score in report.scores if not is_own(score.name, plan)]
    own = next((score for score in report.scores if is_own(score.name, plan)), None)
    return {
        "total_rows": report.rows,
        "total_runs": report.total,
        "eval_fns": {score.name: score_part(score) for score in scores},
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
        "user_tokens": report.user_usage.total_tokens,
        "user_cost_usd": report.user_usage.cost_usd,
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
    part: dict[str, object] = {"mean": score.mean, "std": score.std, "min": score.min, "max": score.max}
    for point in score.pass_at_k:
        part[f"pass_at_{point.k}"] = point.value
    for point in score.pass_hat_k:
        part[f"pass_hat_{point.k}"] = point.value
    part.update(
        median=score.median,
        mean_scored=score.mean_scored,
        mean_ci=pair_of(score.mean_interval),
        pass_rate=score.pass_rate,
        pass_rate_ci=pair_of(score.pass_rate_interval),
        passed=score.passed,
        scored=score.scored,
        failed=score.failed,
        flake_rate=score.flake_rate,
        pass_at_k_ci={str(p.k): pair_of(p.interval) for p in score.pass_at_k},
        pass_hat_k_ci={str(p.k): pair_of(p.interval) for p in score.pass_hat_k},
        bounds=None if score.bounds is None else list(score.bounds),
        reduced={reduced.name: reduced.value for reduced in score.reduced},
        reduced_ci={reduced.name: pair_of(reduced.interval) for reduced in score.reduced},
    )
    return part


def write_rows(out: IO[bytes], journal: Journal, plan: EvalPlan) -> None:
    between = b""
    for row, lines in groupby(journal.in_order(), key=itemgetter("row_index")):
        runs = [run_part(line, plan) for line in lines]
        out.write(between + orjson.dumps({"row_index": row, "runs": runs, "pass_rate": pass_rates(plan, runs)}))
        between = b","


def pass_rates(plan: EvalPlan, runs: Sequence[JsonObject]) -> dict[str, float]:
    counted = []
    for run in runs:
        if run["status"] != RolloutStatus.SKIPPED.value:
            values = {**run["scores"], **({REWARD: run["reward"]} if "reward" in run else {})}
            counted.append({name: value is not None and value >= plan.pass_threshold for name, value in values.items()})
    scores = dict.fromkeys(name for passes in counted for name in passes)
    split = {name for name in plan.score_fns if any(score.startswith(f"{name}.") for score in scores)}
    names = dict.fromkeys([*(name for name in plan.score_fns if name in scores or name not in split), *scores])
    return {name: sum(passes.get(name, False) for passes in counted) / len(counted) for name in names if counted}


def run_part(line: JsonObject, plan: EvalPlan) -> dict[str, object]:
    failure, usage = line.get("failure"), line.get("usage") or {}
    values, errors = {}, {}
    for name, score in (line.get("scores") or {}).items():
        values[name] = score.get("value")
        if score.get("failure"):
            errors[name] = score["failure"]["message"]
    own = REWARD in values and is_own(REWARD, plan)
    reward = values.pop(REWARD) if own else None
    prompt, completion = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    run: dict[str, object] = {
        "run_index": line["attempt"],
        "success": line["status"] == RolloutStatus.SUCCESS.value,
        "scores": values,
        "duration_ms": line.get("duration_ms", 0.0),
        "tokens": prompt + completion,
        "status": line["status"],
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
    if failure:
        run["error"] = failure["message"]
        run["failure"] = {"phase": failure["phase"], "category": failure["category"]}
    if errors:
        run["score_errors"] = errors
    return run


def is_own(name: str, plan: EvalPlan) -> bool:
    return name == REWARD and name not in plan.score_fns
