"""Results of promptfoo (`promptfoo eval -o results.json`, result version 3): each prompt with each provider is a run.
Read: variables, assertions as parts of the score, named scores, repeats as attempts, usage, cost, errors."""

from collections.abc import Iterator
from pathlib import Path

import orjson

from osmosis.base.jsonable import JsonObject
from osmosis.bridges import logs
from osmosis.errors import ValidationError
from osmosis.records.run.rollout import Score

NAME = "promptfoo"
ERROR = 2
"""`failureReason` of a call that failed; 1 is a failed assertion."""


def is_log(path: Path) -> bool:
    head = logs.head_of(path)
    return b'"evalId"' in head and b'"results"' in head


def read(path: Path) -> list[logs.LoggedRun]:
    document = logs.read_json(path)
    outer = document.get("results") or {}
    results = outer.get("results") if isinstance(outer, dict) else None
    if not isinstance(results, list) or not results:
        raise ValidationError(f"{path} has no results of promptfoo")
    arms: dict[tuple[int, str], list[JsonObject]] = {}
    for result in results:
        arms.setdefault((result.get("promptIdx", 0), result["provider"]["id"]), []).append(result)
    title = str((document.get("config") or {}).get("description") or path.stem)
    several = len({index for index, _ in arms}) > 1
    return [
        logs.LoggedRun(
            name=logs.run_name(title, provider.rpartition(":")[2], f"prompt-{index + 1}" if several else ""),
            agent=f"{NAME}:{title}",
            model=provider,
            rollouts=_convert(arm),
            scores=["score", "passed"],
            created_at=logs.parse_time(outer.get("timestamp")),
            facts={
                "packages": {NAME: (document.get("metadata") or {}).get("promptfooVersion")},
                "prompt": arm[0]["prompt"].get("label"),
            },
        )
        for (index, provider), arm in sorted(arms.items())
    ]


def _convert(results: list[JsonObject]) -> Iterator[logs.LoggedRollout]:
    for result in sorted(results, key=lambda result: result.get("testIdx", 0)):
        case = result.get("testCase") or {}
        variables = result.get("vars") or case.get("vars") or {}
        # A repeat has a number of its own among the tests: what it tests is the row.
        id = logs.id_of(variables, case.get("assert"), option=orjson.OPT_SORT_KEYS)
        prompt = parse_prompt(result["prompt"].get("raw", ""))
        response, grading = result.get("response") or {}, result.get("gradingResult") or {}
        is_error = result.get("failureReason") == ERROR
        failure = logs.agent_failure(result.get("error") or response.get("error") or "") if is_error else None
        reason = grading.get("reason")
        scores = {} if failure else _scores(result, grading, reason)
        tokens = {**(response.get("tokenUsage") or {}), "cost": result.get("cost") or None}
        metadata = {"vars": variables, "description": case.get("description"), "assert": case.get("assert")}
        yield logs.logged(
            logs.row_of(id, prompt, None, logs.present(metadata)),
            logs.conversation(prompt, response.get("output")),
            scores,
            failure,
            rollout_id=result.get("id") or "",
            finish_reason=response.get("finishReason"),
            usage=logs.usage_of(tokens, "prompt", "completion", "cached", "cost"),
            duration_ms=float(result.get("latencyMs") or 0.0),
        )


def _scores(result: JsonObject, grading: JsonObject, reason: str | None) -> dict[str, Score]:
    parts: dict[str, float] = {}
    for number, component in enumerate(grading.get("componentResults") or (), 1):
        assertion = component.get("assertion") or {}
        name = assertion.get("metric") or assertion.get("type") or "assertion"
        parts[name if name not in parts else f"{name}-{number}"] = float(component.get("score") or 0.0)
    score = float(result.get("score") or 0.0)
    scores = {"score": Score(score, reason, parts=parts or None, name="score")}
    return {**scores, "passed": Score(bool(result.get("success")), reason, name="passed")}


def parse_prompt(raw: str) -> str | list[JsonObject]:
    if raw.lstrip().startswith("["):
        try:
            messages = orjson.loads(raw)
        except orjson.JSONDecodeError:
            return raw
        if isinstance(messages, list) and all(isinstance(message, dict) and "role" in message for message in messages):
            return messages
    return raw
