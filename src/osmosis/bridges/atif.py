"""Trajectories in ATIF 1.5 to 1.8: one file, or a folder with a trial's files around each, as Harbor writes its jobs.
Read: steps, tool calls, usage, token ids are left out; rewards of `result.json` or `verifier/reward.txt|json`, and the
exception of a trial. Sub-agents' trajectories are kept in `info`."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from osmosis.base.jsonable import JsonObject
from osmosis.bridges import logs
from osmosis.errors import ValidationError
from osmosis.records.run.rollout import ModelCall, Score
from osmosis.records.trajectory import messages_from_trajectory

NAME = "atif"
VERSIONS = tuple(f"ATIF-v1.{minor}" for minor in range(9))


def is_log(path: Path) -> bool:
    if path.is_dir():
        return any(path.rglob("trajectory.json")) or any(path.rglob("*.trajectory.json"))
    return b'"ATIF-v' in logs.head_of(path)


def read(path: Path) -> list[logs.LoggedRun]:
    files = sorted({*path.rglob("trajectory.json"), *path.rglob("*.trajectory.json")}) if path.is_dir() else [path]
    if not files:
        raise ValidationError(f"there is no trajectory.json in {path}")
    first = _read_document(files[0])
    agent = first.get("agent") or {}
    return [
        logs.LoggedRun(
            name=logs.run_name(path.stem, str(agent.get("name") or "")),
            agent=f"{NAME}:{agent.get('name') or 'agent'}",
            model=str(agent.get("model_name") or "unknown"),
            rollouts=_convert(files, path),
            scores=["reward"],
            facts={"agent": agent, "schema_version": first.get("schema_version")},
        )
    ]


def _read_document(file: Path) -> JsonObject:
    document = logs.read_json(file)
    version = str(document.get("schema_version"))
    if version not in VERSIONS:
        raise ValidationError(f"{file} has schema_version {version!r}; ATIF-v1.0 to {VERSIONS[-1]} can be read")
    return document


def _convert(files: Sequence[Path], root: Path) -> Iterator[logs.LoggedRollout]:
    for file in files:
        document = _read_document(file)
        trial = next((folder for folder in file.parents if (folder / "result.json").exists()), file.parent)
        result: JsonObject = logs.read_json(trial / "result.json") if (trial / "result.json").exists() else {}
        ours = (document.get("extra") or {}).get("osmosis") or {}
        id = str(result.get("task_name") or ours.get("row_key") or _task_name(trial, file, root))
        messages = messages_from_trajectory(document)
        failure = None
        if exception := result.get("exception_info"):
            message = f"{exception.get('exception_type')}: {exception.get('exception_message')}"
            failure = logs.agent_failure(message, exception.get("exception_traceback"))
        scores = {name: Score(value, name=name) for name, value in _rewards(trial, result, ours).items()}
        row = logs.row_of(id, next((str(m["content"]) for m in messages if m["role"] == "user"), ""))
        totals, steps = document.get("final_metrics") or {}, document.get("steps") or []
        sub_agents = document.get("subagent_trajectories") or []
        times = result.get("agent_execution") or {}
        start, end = logs.parse_time(times.get("started_at")), logs.parse_time(times.get("finished_at"))
        yield logs.logged(
            row,
            messages,
            {} if failure else scores,
            failure,
            rollout_id=str(document.get("trajectory_id") or document.get("session_id") or ""),
            usage=logs.usage_of(
                totals, "total_prompt_tokens", "total_completion_tokens", "total_cached_tokens", "total_cost_usd"
            ),
            calls=list(_calls(steps)),
            num_tool_calls=logs.tool_calls(steps),
            duration_ms=1000 * (end - start).total_seconds() if start and end else 0.0,
            model=(document.get("agent") or {}).get("model_name"),
            info={"sub_agents": len(sub_agents)} if sub_agents else {},
        )


def _task_name(trial: Path, file: Path, root: Path) -> str:
    name = trial.name if file.name == "trajectory.json" and trial != root else file.name.partition(".")[0]
    return name.partition("__")[0]


def _rewards(trial: Path, result: JsonObject, ours: JsonObject) -> dict[str, float]:
    verified = (result.get("verifier_result") or {}).get("rewards")
    if verified is None:
        with suppress(FileNotFoundError):
            verified = logs.read_json(trial / "verifier" / "reward.json")
    if verified is None and (text := trial / "verifier" / "reward.txt").exists():
        with suppress(ValueError):
            verified = {"reward": float(text.read_text())}
    if verified is None and ours.get("reward") is not None:
        verified = {"reward": ours["reward"]}
    return {name: number for name, value in (verified or {}).items() if (number := logs.numeric(value)) is not None}


def _calls(steps: Sequence[JsonObject]) -> Iterator[ModelCall]:
    for step in steps:
        metrics = step.get("metrics")
        if metrics and not step.get("is_copied_context"):
            usage = logs.usage_of(metrics, "prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd")
            yield ModelCall(started_ms=0.0, duration_ms=0.0, usage=usage, model=step.get("model_name"))
