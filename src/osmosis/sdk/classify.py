"""The one place where an exception becomes a `Failure`: which phase, whose fault, what text, the last frames.

Agent loops and workflows, graders and score functions, in this process and behind a rollout server, are all
classified here, so that the same error has the same category everywhere: the breaker, `--retry-failed` and the
report count on it. Model errors of vendor libraries are recognised by their shape, without importing one. Decides
nothing about retries.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator
from contextvars import ContextVar

from pydantic import ValidationError as PydanticValidationError
from pydantic_core import PydanticCustomError

from osmosis.base.plain_json import whole_text
from osmosis.errors import ModelError, OsmosisError, SandboxUnavailable
from osmosis.llm.failures import category_of_error
from osmosis.records.rollout import Category, Failure, Phase

from .calls import DeadlineExceeded, SelfCancelled
from .exceptions import INVALID_REWARD, OsmosisTimeoutError, OsmosisTransportError, ToolExecutionError, ToolServerLost

_TAIL_LINES = 30
_MESSAGE_LIMIT = 2000
_CHAIN_LIMIT = 8
_KEPT = frozenset({Category.SERVER_DIED, Category.CANCELLED})
"""What stays the cause although a model call failed as well."""

raised: ContextVar[list[BaseException] | None] = ContextVar("raised", default=None)
"""Collects what user code raised, for a debugger; None, as ever but there: nothing is kept."""

WIRE_CATEGORIES = ("timeout", "validation_error", "http_error", "agent_error")
"""The words generation 0.3 knows for `err_category`."""


def traceback_tail(exc: BaseException, lines: int = _TAIL_LINES) -> str:
    """The last lines of the traceback, the exception included."""
    text = "".join(traceback.format_exception(type(exc), exc, exc.__traceback__))
    kept = whole_text(text).rstrip().splitlines()
    return "\n".join(kept[-lines:])


def describe(exc: BaseException) -> str:
    """`Type: text` in one paragraph; the type alone when there is no text."""
    try:
        text = whole_text(str(exc).strip())
    except Exception:  # noqa: BLE001 - the exception is user code, and so is its __str__
        text = "(its text cannot be read)"
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


def failure_of(exc: BaseException, phase: Phase) -> Failure:
    """The failure behind `exc`, raised by user code in `phase` (agent or score).

    What an exception was raised `from` counts: a model error stays one when an agent wraps it. A model call that the
    agent did not survive is of the model phase; a judge's is of the score phase.
    """
    if (kept := raised.get()) is not None:
        kept.append(exc)
    known = _infrastructure(exc, phase) or _limit_or_reward(exc, phase)
    if known is not None:
        return known
    category = Category.SCORE_ERROR if phase is Phase.SCORE else Category.AGENT_ERROR
    if isinstance(exc, (asyncio.TimeoutError, TimeoutError)):
        category = Category.TIMEOUT
    return Failure(phase=phase, category=category, message=_text(exc), traceback=traceback_tail(exc))


def overrun(seconds: float, phase: Phase = Phase.AGENT) -> Failure:
    """The agent, or the grader, took longer than its `seconds`."""
    who, flag = ("the grader", "--score-timeout") if phase is Phase.SCORE else ("the agent", "--agent-timeout")
    return Failure(
        phase=phase,
        category=Category.TIMEOUT,
        message=f"{who} did not finish within {seconds:g} s",
        fix=f"raise the time limit ({flag}), or look for calls that block or never return",
    )


def self_cancelled(phase: Phase = Phase.AGENT) -> Failure:
    """User code cancelled the task it runs in."""
    return Failure(phase=phase, category=Category.CANCELLED, message="the code cancelled its own task")


def true_cause(failure: Failure, error: ModelError | None) -> Failure:
    """`failure` of an agent whose last model call ended with `error`: the model's category beats what the agent made
    of it, however the agent wrapped or swallowed the error. Time limits, cancellations and lost servers stay."""
    if error is None or failure.category in _KEPT or failure.phase is Phase.SCORE:
        return failure
    if failure.category is Category.TIMEOUT and failure.phase is Phase.AGENT:
        return failure
    cause = failure_of(error, Phase.AGENT)
    return cause.model_copy(update={"traceback": failure.traceback, "fix": cause.fix or failure.fix})


def wire_category(failure: Failure, exc: BaseException | None = None) -> str:
    """The one of `WIRE_CATEGORIES` that fits: other implementations know no more words."""
    if failure.category is Category.TIMEOUT:
        return "timeout"
    if failure.phase is Phase.MODEL:
        return "http_error"
    if failure.category is Category.INVALID_SCORE or isinstance(exc, PydanticValidationError):
        return "validation_error"
    return "agent_error"


def _infrastructure(exc: BaseException, phase: Phase) -> Failure | None:
    """The failure of a model, a judge or a tool server, when that is what `exc` is or was raised from."""
    for cause in _chain(exc):
        if isinstance(cause, ToolServerLost):
            return Failure(
                phase=Phase.SETUP if phase is Phase.AGENT else phase,
                category=Category.SERVER_DIED,
                message=_text(cause),
                fix="restart the MCP server, then resume with --retry-failed",
            )
        if isinstance(cause, ToolExecutionError):
            return None  # whatever the tool fell over, a model call it was not
        if isinstance(cause, SandboxUnavailable):
            return Failure(
                phase=Phase.SETUP if phase is Phase.AGENT else phase,
                category=Category.UNKNOWN,
                message=_text(cause),
                fix=cause.hint,
            )
        category = _category(cause)
        if category is not None:
            return Failure(
                phase=Phase.MODEL if phase is Phase.AGENT else phase,
                category=category,
                message=_text(cause),
                traceback=traceback_tail(exc),
                fix=cause.hint if isinstance(cause, OsmosisError) else None,
            )
    return None


def _chain(exc: BaseException | None) -> Iterator[BaseException]:
    """The exception, what it was raised from, and so on."""
    for _ in range(_CHAIN_LIMIT):
        if exc is None:
            return
        yield exc
        exc = exc.__cause__


def _category(exc: BaseException) -> Category | None:
    """Of a failed model call; None for every other exception."""
    said = exc.details.get("category") if isinstance(exc, OsmosisError) else None
    if said is not None:
        try:
            return Category(said)
        except ValueError:
            return Category.UNKNOWN
    if isinstance(exc, OsmosisTimeoutError):
        return Category.TIMEOUT
    if isinstance(exc, OsmosisTransportError):
        return Category.CONNECTION
    return category_of_error(exc)


def _limit_or_reward(exc: BaseException, phase: Phase) -> Failure | None:
    """The failure of code that overran its limit, cancelled itself, or set a reward that is not a number."""
    if isinstance(exc, DeadlineExceeded):
        return overrun(exc.seconds, phase)
    if isinstance(exc, (SelfCancelled, asyncio.CancelledError)):
        return self_cancelled(phase)
    invalid = _invalid_reward(exc)
    if invalid is None:
        return None
    return Failure(
        phase=Phase.SCORE,
        category=Category.INVALID_SCORE,
        message=invalid,
        traceback=traceback_tail(exc),
        fix="compute a finite number, or set ctx.sample.remove_sample = True to leave the rollout out",
    )


def _invalid_reward(exc: BaseException) -> str | None:
    """What is wrong with the reward, when that is what `exc` is about."""
    if isinstance(exc, PydanticCustomError) and exc.type == INVALID_REWARD:
        return exc.message()
    if isinstance(exc, PydanticValidationError):
        return next((error["msg"] for error in exc.errors() if error["type"] == INVALID_REWARD), None)
    return None


def _text(exc: BaseException) -> str:
    """Our own errors in their own words, all others with their type."""
    text = exc.message if isinstance(exc, OsmosisError) else describe(exc)
    return text[:_MESSAGE_LIMIT]
