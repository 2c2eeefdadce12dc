from collections.abc import Iterator, Mapping
from pathlib import Path

from osmosis.base.jsonable import JsonObject
from osmosis.datasets.scan import read_rows
from osmosis.engine.journal import StoredRollouts
from osmosis.errors import OsmosisError
from osmosis.records.run.plan import EvalPlan, Selection
from osmosis.records.run.rollout import Message, Rollout


def flat_rollouts(journal: StoredRollouts) -> Iterator[dict[str, object]]:
    rows = read_dataset(journal.plan())
    for line in journal.in_order():
        rollout = Rollout.model_validate(line)
        yield flatten(rollout, rows.get(rollout.row_key or ""))


def read_dataset(plan: EvalPlan) -> dict[str, JsonObject]:
    path = Path(plan.dataset)
    try:
        return {str(row.data.get("id") or row.content_hash): row.data for row in read_rows(path, Selection())}
    except (OSError, OsmosisError):
        return {}


def flatten(rollout: Rollout, row: Mapping[str, object] | None = None) -> dict[str, object]:
    """Return one flat row: place, status, `prompt`, `expected`, `answer`, each score with its `NAME.reason` and
    `NAME.part.PART`, failure, tokens, cost (US dollars), milliseconds, and `row.COLUMN` for its other columns."""
    columns: dict[str, object] = {
        "row_index": rollout.row_index,
        "row_key": rollout.row_key,
        "attempt": rollout.attempt,
        "status": rollout.status.value,
        "prompt": _prompt(rollout.messages, row),
        "expected": (row or {}).get("ground_truth"),
        "answer": next((_text(m) for m in reversed(rollout.messages) if m.get("role") == "assistant"), None),
    }
    for score in rollout.scores.values():
        columns[score.name] = score.value
        if score.reason is not None:
            columns[f"{score.name}.reason"] = score.reason
        columns |= {f"{score.name}.part.{part}": value for part, value in (score.parts or {}).items()}
    failure = rollout.failure
    columns |= {
        "failure": f"{failure.phase.value}/{failure.category.value}" if failure else None,
        "failure_message": failure.message if failure else None,
        "finish_reason": rollout.finish_reason,
        "model": rollout.model,
        "num_tool_calls": rollout.num_tool_calls,
        "prompt_tokens": rollout.usage.prompt_tokens,
        "completion_tokens": rollout.usage.completion_tokens,
        "cost_usd": rollout.usage.cost_usd,
        "duration_ms": rollout.duration_ms,
        "started_at": rollout.started_at,
    }
    flattened = {"user_prompt", "messages", "ground_truth"}
    return columns | {f"row.{name}": value for name, value in (row or {}).items() if name not in flattened}


def _prompt(messages: list[Message], row: Mapping[str, object] | None) -> str | None:
    if row and isinstance(row.get("user_prompt"), str):
        return str(row["user_prompt"])
    return next((_text(message) for message in messages if message.get("role") == "user"), None)


def _text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    return "" if content is None else str(content)
