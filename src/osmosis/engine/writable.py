"""What user code leaves becomes what a journal can hold: a copy in whole text and plain values, or a failure.

A value that JSON cannot hold costs its own rollout, with its place, and never the journal that others wait for.
"""

from __future__ import annotations

import orjson
from pydantic import ValidationError

from osmosis.base.plain_json import plain
from osmosis.records.rollout import Category, Failure, Phase, Rollout, RolloutStatus

_IDENTITY = ("rollout_id", "row_index", "attempt", "step", "row_key", "status", "failure", "started_at", "hashes")
"""What is kept of a rollout of which nothing else can be."""


def writable(rollout: Rollout) -> tuple[bytes, Rollout]:
    """The line that a journal holds for this rollout, and the rollout that line says.

    Nothing that user code left makes it raise: whatever still has no JSON form is the failure of this rollout alone.
    """
    try:
        return rollout.to_line(), rollout
    except Exception:  # noqa: BLE001 - user code left something: it costs its own rollout, never the journal
        refused: list[str] = []
        values = plain(rollout, "", refused)
        assert isinstance(values, dict)
        try:
            stored = Rollout(**{key: value for key, value in values.items() if value is not None})
        except ValidationError as error:
            first = error.errors()[0]
            refused.append(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
            stored = Rollout(**{key: values[key] for key in _IDENTITY if values[key] is not None})
        if refused:
            stored.status, stored.scores = RolloutStatus.FAILED, {}
            stored.failure = stored.failure or not_json(refused)
        return stored.to_line(), stored


def own_json(value: object, place: str, refused: list[str]) -> object:
    """A copy of `value` as JSON gives it back; what has no JSON form is replaced, and its place added to `refused`."""
    try:
        return orjson.loads(orjson.dumps(value))
    except (TypeError, ValueError, RecursionError):
        return plain(value, place, refused)


def not_json(refused: list[str]) -> Failure:
    """The failure of a rollout that left these places."""
    more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
    return Failure(
        phase=Phase.AGENT,
        category=Category.AGENT_ERROR,
        message=f"what the agent left cannot be stored as JSON: {refused[0]}{more}",
        fix="keep only text, numbers, lists and dicts in messages and info",
    )
