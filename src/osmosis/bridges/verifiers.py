"""Results of verifiers: `traces.jsonl` of 0.4 (one episode a line) and `results.jsonl` of 0.3 and older. Of several
agents the first trainable one is the rollout. Not read: token ids, forks beside the last leaf of a message graph."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

import orjson

from osmosis.base.jsonable import JsonObject
from osmosis.bridges import logs
from osmosis.errors import ValidationError
from osmosis.records.run.rollout import Message, ModelCall, Score

NAME = "verifiers"
FILES = ("traces.jsonl", "results.jsonl")
_FUNCTION = ("name", "arguments")


def is_log(path: Path) -> bool:
    if path.is_dir():
        return any((path / name).exists() for name in FILES)
    if path.suffix != ".jsonl":
        return False
    first = next(iter(logs.read_lines(path)), {})
    return "traces" in first or {"example_id", "completion", "reward"} <= set(first)


def read(path: Path) -> list[logs.LoggedRun]:
    file = next(path / name for name in FILES if (path / name).exists()) if path.is_dir() else path
    first = next(iter(logs.read_lines(file)), None)
    if first is None:
        raise ValidationError(f"{file} is empty")
    return [_read_traces(file, first) if "traces" in first else _read_results(file)]


def _read_traces(file: Path, first: JsonObject) -> logs.LoggedRun:
    trace = _trace(first)
    config = trace.get("agent", {}).get("config", {})
    environment, model = str(first.get("env", {}).get("id") or file.parent.name), str(config.get("model") or "unknown")
    return logs.LoggedRun(
        name=logs.run_name(environment, model.rpartition("/")[2]),
        agent=f"{NAME}:{environment}",
        model=model,
        rollouts=_convert_traces(file),
        scores=["reward"],
        created_at=datetime.fromtimestamp(trace.get("timing", {}).get("start", 0), timezone.utc),
        params={key: value for key, value in (config.get("sampling") or {}).items() if value is not None},
        facts={
            "packages": {NAME: trace.get("verifiers", {}).get("version")},
            "harness": config.get("harness", {}).get("id"),
        },
    )


def _trace(episode: JsonObject) -> JsonObject:
    traces = episode.get("traces") or [{}]
    return next((trace for trace in traces if trace.get("agent", {}).get("trainable")), traces[0])


def _convert_traces(file: Path) -> Iterator[logs.LoggedRollout]:
    for episode in logs.read_lines(file):
        trace = _trace(episode)
        task, data = episode["task"], episode["task"]["data"]
        id = str(data.get("id") or task["key"])
        errors = [*episode.get("errors", ()), *trace.get("errors", ())]
        failure = logs.agent_failure(f"{errors[0].get('type')}: {errors[0].get('message')}") if errors else None
        scores = {} if failure else _rewards(trace.get("rewards", {}))
        start, agent = trace.get("timing", {}).get("start"), trace.get("timing", {}).get("agent", {})
        messages = _branch(trace.get("nodes", []))
        hidden = {"idx", "id", "prompt", "system_prompt", "answer"}
        metadata = {key: value for key, value in data.items() if key not in hidden and value not in ([], {}, None)}
        prompt = data.get("prompt") or ""
        if data.get("system_prompt"):
            user = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
            prompt = [{"role": "system", "content": data["system_prompt"]}, *user]
        yield logs.logged(
            logs.row_of(id, prompt, data.get("answer"), metadata),
            messages,
            scores,
            failure,
            rollout_id=episode.get("id") or trace["id"],
            tools=trace.get("tools") or None,
            finish_reason=trace.get("stop_condition"),
            usage=logs.usage_of(episode, "num_input_tokens", "num_output_tokens"),
            calls=[_call(call, start or 0.0) for call in trace.get("calls", ())],
            num_tool_calls=logs.tool_calls(messages),
            duration_ms=1000 * max(0.0, agent.get("end", 0.0) - agent.get("start", 0.0)),
            metrics={name: float(value) for name, value in trace.get("metrics", {}).items()},
            info={"trace": trace["id"]} if "id" in trace else {},
            **({"started_at": datetime.fromtimestamp(start, timezone.utc)} if start else {}),
        )


def _rewards(rewards: JsonObject) -> dict[str, Score]:
    if not rewards:
        return {}
    parts = {name: float(reward["score"]) for name, reward in rewards.items()}
    total = sum(float(reward["score"]) * float(reward.get("weight", 1.0)) for reward in rewards.values())
    return {"reward": Score(total, parts=parts if len(parts) > 1 else None, name="reward")}


def _branch(nodes: list[JsonObject]) -> list[Message]:
    messages: list[Message] = []
    index: int | None = len(nodes) - 1 if nodes else None
    while index is not None:
        plain = {key: value for key, value in nodes[index]["message"].items() if value is not None}
        calls = plain.get("tool_calls")
        if calls and "function" not in calls[0]:
            plain["tool_calls"] = [
                {"id": call.get("id"), "type": "function", "function": {key: call.get(key) for key in _FUNCTION}}
                for call in calls
            ]
        messages.append(plain)
        index = nodes[index].get("parent")
    return messages[::-1]


def _call(call: JsonObject, start: float) -> ModelCall:
    time, error = call.get("time", {}), call.get("error")
    return ModelCall(
        started_ms=1000 * max(0.0, time.get("start", start) - start),
        duration_ms=1000 * max(0.0, time.get("end", 0.0) - time.get("start", 0.0)),
        usage=logs.usage_of(call.get("usage") or {}, "prompt_tokens", "completion_tokens"),
        finish_reason=call.get("finish_reason"),
        model=call.get("model"),
        error=error.get("message") if isinstance(error, dict) else error,
    )


def _read_results(file: Path) -> logs.LoggedRun:
    facts: JsonObject = {}
    with suppress(FileNotFoundError):
        facts = logs.read_json(file.parent / "metadata.json")
    environment = str(facts.get("env_id") or facts.get("env") or file.parent.name)
    model = str(facts.get("model") or "unknown")
    return logs.LoggedRun(
        name=logs.run_name(environment, model.rpartition("/")[2]),
        agent=f"{NAME}:{environment}",
        model=model,
        rollouts=_convert_results(file),
        scores=["reward"],
        created_at=logs.parse_time(facts.get("date")),
        params=facts.get("sampling_args") or {},
        facts={"packages": {NAME: facts.get("version")}},
    )


def _convert_results(file: Path) -> Iterator[logs.LoggedRollout]:
    for line in logs.read_lines(file):
        id, prompt, completion = str(line["example_id"]), line.get("prompt") or "", line.get("completion") or ""
        messages = logs.conversation(prompt, None)
        messages += completion if isinstance(completion, list) else [{"role": "assistant", "content": completion}]
        failure = logs.agent_failure(line["error"]) if line.get("error") else None
        reward = logs.numeric(line.get("reward"))
        parts = {
            name: float(value) for name, value in (line.get("metrics") or {}).items() if logs.numeric(value) is not None
        }
        scores = {} if failure or reward is None else {"reward": Score(reward, parts=parts or None, name="reward")}
        tokens, info = line.get("token_usage") or {}, line.get("info") or {}
        tokens = {key: int(tokens.get(key) or 0) for key in ("input_tokens", "output_tokens")}
        metadata = orjson.loads(info) if isinstance(info, str) else info
        yield logs.logged(
            logs.row_of(id, prompt, line.get("answer"), metadata),
            messages,
            scores,
            failure,
            finish_reason=line.get("stop_condition"),
            usage=logs.usage_of(tokens, "input_tokens", "output_tokens"),
            num_tool_calls=logs.tool_calls(messages),
            duration_ms=float((line.get("timing") or {}).get("total_ms") or line.get("generation_ms") or 0.0),
        )
