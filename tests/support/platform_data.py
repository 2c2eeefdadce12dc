"""Runs and rollouts to put into a platform under test: rows as a job would have left them, without a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from osmosis._version import __version__
from osmosis.base.jsonable import JsonObject
from osmosis.platform import tables
from osmosis.platform.runs import rollouts as service
from osmosis.records.base import utc_now
from osmosis.records.run.job import JOB_PROTOCOL
from osmosis.records.run.report import Distribution, FailureCount, Interval, PassAtK, Report, ScoreReport
from osmosis.records.run.rollout import (
    Category,
    Failure,
    Message,
    ModelCall,
    Phase,
    Rollout,
    RolloutStatus,
    Score,
    Usage,
)

if TYPE_CHECKING:  # the platform's libraries are loaded with the platform under test
    from sqlalchemy.orm import Session

    from osmosis.platform import Platform

COMMIT = "4f1c2d3e" * 5
EXPERIMENT = {"rollout": "multiply", "entrypoint": "main.py", "model_path": "offline/calculator", "dataset": "sums"}
"""An experiment with the rollout and the dataset that the fixture `ready` has."""
EVALUATION: JsonObject = {"experiment_config": EXPERIMENT, "evaluation_config": {"limit": 4}}
"""A body for `eval-runs`."""


def a_worker(session: Session, name: str = "test", **changes: Any) -> tables.Worker:
    """A worker of the platform's own, that does nothing by itself."""
    values: dict[str, Any] = {
        "embedded": True, "machine": "here", "version": __version__, "protocol": JOB_PROTOCOL, "executor": "local",
        "kinds": ["eval", "training", "serving"], "labels": {}, "resources": {}, "max_jobs": 1, "slots": 1,
        "sandbox": "",
    }  # fmt: skip
    worker = tables.Worker(name=name, **{**values, **changes})
    session.add(worker)
    session.flush()
    return worker


def a_job(run: tables.Run, **columns: Any) -> tables.Job:
    """A job of a run, waiting; `columns` sets others."""
    values = {"workspace_id": run.workspace_id, "kind": run.kind, "priority": run.priority}
    return tables.Job(**run.reference, **values, work_created_at=run.created_at, **columns)


def conversation(a: int, b: int, answer: int) -> list[Message]:
    """A short conversation with one tool call."""
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "multiply", "arguments": f'{{"a": {a}, "b": {b}}}'},
    }
    return [
        {"role": "system", "content": "Use the tools. End with #### and the number."},
        {"role": "user", "content": f"What is {a} times {b}?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": f'{{"result": {a * b}}}'},
        {"role": "assistant", "content": f"The product is {answer}.\n#### {answer}"},
    ]


def rollout(
    row: int, attempt: int, value: float | None = 1.0, *, failure: Failure | None = None, **more: object
) -> Rollout:
    """A finished rollout; with a failure it has no score."""
    usage = Usage(prompt_tokens=120 + row, completion_tokens=30, cost_usd=0.0004)
    known: dict[str, object] = {
        "rollout_id": f"r-{row}-{attempt}",
        "row_index": row,
        "attempt": attempt,
        "status": RolloutStatus.FAILED if failure else RolloutStatus.SUCCESS,
        "messages": conversation(row + 2, attempt + 3, (row + 2) * (attempt + 3) if value else 0),
        "scores": {} if failure else {"reward": Score(name="reward", value=value, reason="compared with the product")},
        "failure": failure,
        "finish_reason": "stop",
        "usage": usage,
        "calls": [ModelCall(started_ms=2.0, duration_ms=310.0, usage=usage, finish_reason="tool_calls")],
        "num_tool_calls": 1,
        "duration_ms": 640.0 + 10 * row,
    }
    return Rollout(**{**known, **more})


def timeout() -> Failure:
    return Failure(
        phase=Phase.AGENT,
        category=Category.TIMEOUT,
        message="the agent did not finish within 450 s",
        traceback='Traceback (most recent call last):\n  File "main.py", line 12, in run\nTimeoutError',
    )


def report(rows: int = 10, attempts: int = 3, completed: int | None = None, **more: object) -> Report:
    """A report with every part filled."""
    done = rows * attempts if completed is None else completed
    failed = min(2, done)
    passed = int((done - failed) * 0.75)
    rate = passed / done if done else None
    spread = Distribution(mean=700, median=690, p90=720, p99=729, min=640, max=730)
    primary = ScoreReport(
        name="reward",
        mean=rate,
        mean_interval=Interval(low=0.55, high=0.83) if done else None,
        mean_scored=passed / (done - failed) if done > failed else None,
        std=0.45,
        min=0.0,
        max=1.0,
        median=1.0,
        passed=passed,
        scored=done - failed,
        failed=failed,
        pass_rate=rate,
        pass_rate_interval=Interval(low=0.55, high=0.83) if done else None,
        pass_at_k=[PassAtK(k=k, value=0.7 + 0.1 * k, interval=None, rows=rows) for k in (1, 2, 3)],
        pass_hat_k=[PassAtK(k=k, value=0.8 - 0.15 * k, rows=rows) for k in (1, 2, 3)],
        flake_rate=0.3,
    )
    known: dict[str, object] = {
        "rows": rows,
        "attempts": attempts,
        "pass_threshold": 1.0,
        "total": rows * attempts,
        "completed": done,
        "succeeded": done - failed,
        "failed": failed,
        "skipped": 0,
        "coverage": (done - failed) / (rows * attempts),
        "scores": [primary],
        "failures": [
            FailureCount(
                phase=Phase.AGENT, category=Category.TIMEOUT, count=failed, example=timeout().message, rows=[1, 4]
            )
        ]
        if failed
        else [],
        "usage": Usage(prompt_tokens=12_450, completion_tokens=3_100, cost_usd=0.0213),
        "latency_ms": spread,
        "tokens": spread,
        "duration_ms": 48_000.0,
    }
    return Report(**{**known, **more})


def add_run(
    platform: Platform, workspace_id: str, name: str = "multiply-1", status: str = "finished", **more: Any
) -> str:
    """A run of the workspace, by id; `more` sets columns."""
    known: JsonObject = {
        "kind": "eval",
        "config": {
            "experiment": {
                "rollout": "multiply",
                "entrypoint": "main.py",
                "model_path": "openai/gpt-5-mini",
                "dataset": "multiply",
            },
            "evaluation": {"n": 3, "limit": 10, "pass_threshold": 1.0},
            "secrets": {"required": ["OPENAI_API_KEY"]},
        },
        "rollout": "multiply",
        "model_path": "openai/gpt-5-mini",
        "dataset": "multiply",
        "dataset_path": "multiply.jsonl",
        "dataset_rows": 200,
        "commit_sha": COMMIT,
        "branch": "main",
        "rows": list(range(10)),
        "sampled_rows": 10,
        "secret_scopes": {"OPENAI_API_KEY": "user_override"},
        "report": report().to_dict() if status == "finished" else None,
        "started_at": None if status == "pending" else utc_now(),
        "completed_at": utc_now() if status in ("finished", "failed", "stopped") else None,
    }
    with platform.db.write() as session:
        row = tables.Run(workspace_id=workspace_id, name=name, status=status, **{**known, **more})
        session.add(row)
        session.flush()
        session.add(tables.RunEvent(run_id=row.id, before=None, status="pending", reason="submitted by local"))
        if status != "pending":
            session.add(tables.RunEvent(run_id=row.id, before="pending", status=status, reason=""))
        return str(row.id)


def add_rollouts(platform: Platform, run_id: str, rollouts: list[Rollout]) -> None:
    """Store rollouts as a job's batch would."""
    with platform.db.write() as session:
        service.store(session, run_id, rollouts)
