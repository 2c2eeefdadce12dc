import asyncio
import traceback
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from pydantic import ValidationError as PydanticValidationError
from pydantic_core import PydanticCustomError

from osmosis.base.jsonable import to_valid_text
from osmosis.errors import ModelError, OsmosisError, SandboxUnavailable
from osmosis.llm.failures import category_of_error
from osmosis.records.run.rollout import Category, Failure, Phase
from osmosis.sdk.types import (
    INVALID_REWARD,
    OsmosisTimeoutError,
    OsmosisTransportError,
    ToolExecutionError,
    ToolServerLost,
)
from osmosis.sdk.user_code import DeadlineExceeded, SelfCancelled

_TAIL_LINES = 30
_MESSAGE_LIMIT = 2000
_OURS = f"{Path(__file__).parents[1]}/"
_CHAIN_LIMIT = 8
_KEPT_CATEGORIES = frozenset({Category.SERVER_DIED, Category.CANCELLED})

raised: ContextVar[list[BaseException] | None] = ContextVar("raised", default=None)
"""Collects the exceptions of user code for a debugger; None outside of one."""


def traceback_tail(exc: BaseException, lines: int = _TAIL_LINES) -> str:
    frame = exc.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_OURS):
        frame = frame.tb_next  # a person looks for a line of their own, not for the calls that led to it
    text = "".join(traceback.format_exception(type(exc), exc, frame or exc.__traceback__))
    tail = to_valid_text(text).rstrip().splitlines()
    return "\n".join(tail[-lines:])


def describe(exc: BaseException) -> str:
    try:
        text = to_valid_text(str(exc).strip())
    except Exception:  # noqa: BLE001 - the exception is user code, and so is its __str__
        text = "(its text cannot be read)"
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


def failure_of(exc: BaseException, phase: Phase) -> Failure:
    if (errors := raised.get()) is not None:
        errors.append(exc)
    try:
        return _failure_of(exc, phase)
    except Exception:  # noqa: BLE001 - the exception is user code: whatever is read of it may raise
        category = Category.SCORE_ERROR if phase is Phase.SCORE else Category.AGENT_ERROR
        return Failure(phase=phase, category=category, message=f"{type(exc).__name__}: (it cannot be read)")


def _failure_of(exc: BaseException, phase: Phase) -> Failure:
    failure = _infrastructure(exc, phase) or _limit_or_reward(exc, phase)
    if failure is not None:
        return failure
    category = Category.SCORE_ERROR if phase is Phase.SCORE else Category.AGENT_ERROR
    if isinstance(exc, (asyncio.TimeoutError, TimeoutError)):
        category = Category.TIMEOUT
    return Failure(phase=phase, category=category, message=_text(exc), traceback=traceback_tail(exc))


def agent_error(message: str, fix: str | None = None) -> Failure:
    return Failure(phase=Phase.AGENT, category=Category.AGENT_ERROR, message=message, fix=fix)


def overrun(seconds: float, phase: Phase = Phase.AGENT) -> Failure:
    subject, flag = ("the grader", "--score-timeout") if phase is Phase.SCORE else ("the agent", "--agent-timeout")
    message = f"{subject} did not finish within {seconds:g} s"
    fix = f"raise the time limit ({flag}), or look for calls that block or never return"
    return Failure(phase=phase, category=Category.TIMEOUT, message=message, fix=fix)


def self_cancelled(phase: Phase = Phase.AGENT) -> Failure:
    return Failure(phase=phase, category=Category.CANCELLED, message="the code cancelled its own task")


def true_cause(failure: Failure, error: ModelError | None) -> Failure:
    """Return the category of an agent's last model call, except over a limit, a cancellation or a lost server."""
    if error is None or failure.category in _KEPT_CATEGORIES or failure.phase is Phase.SCORE:
        return failure
    if failure.category is Category.TIMEOUT and failure.phase is Phase.AGENT:
        return failure
    cause = failure_of(error, Phase.AGENT)
    return cause.model_copy(update={"traceback": failure.traceback, "fix": cause.fix or failure.fix})


def wire_category(failure: Failure, exc: BaseException | None = None) -> str:
    if failure.category is Category.TIMEOUT:
        return "timeout"
    if failure.phase is Phase.MODEL:
        return "http_error"
    if failure.category is Category.INVALID_SCORE or isinstance(exc, PydanticValidationError):
        return "validation_error"
    return "agent_error"


def _infrastructure(exc: BaseException, phase: Phase) -> Failure | None:
    for cause in _chain(exc):
        if isinstance(cause, (ToolServerLost, SandboxUnavailable)):
            lost = isinstance(cause, ToolServerLost)
            return Failure(
                phase=Phase.SETUP if phase is Phase.AGENT else phase,
                category=Category.SERVER_DIED if lost else Category.UNKNOWN,
                message=_text(cause),
                fix="restart the MCP server, then resume with --retry-failed" if lost else cause.hint,
            )
        if isinstance(cause, ToolExecutionError):
            return None  # whatever the tool fell over, a model call it was not
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
    for _ in range(_CHAIN_LIMIT):
        if exc is None:
            return
        yield exc
        exc = exc.__cause__


def _category(exc: BaseException) -> Category | None:
    word = exc.details.get("category") if isinstance(exc, OsmosisError) else None
    if word is not None:
        try:
            return Category(word)
        except ValueError:
            return Category.UNKNOWN
    if isinstance(exc, OsmosisTimeoutError):
        return Category.TIMEOUT
    if isinstance(exc, OsmosisTransportError):
        return Category.CONNECTION
    return category_of_error(exc)


def _limit_or_reward(exc: BaseException, phase: Phase) -> Failure | None:
    if isinstance(exc, DeadlineExceeded):
        return overrun(exc.seconds, phase)
    if isinstance(exc, (SelfCancelled, asyncio.CancelledError)):
        return self_cancelled(phase)
    invalid = None
    if isinstance(exc, PydanticCustomError) and exc.type == INVALID_REWARD:
        invalid = exc.message()
    elif isinstance(exc, PydanticValidationError):
        invalid = next((error["msg"] for error in exc.errors() if error["type"] == INVALID_REWARD), None)
    if invalid is None:
        return None
    return Failure(
        phase=Phase.SCORE,
        category=Category.INVALID_SCORE,
        message=invalid,
        traceback=traceback_tail(exc),
        fix="compute a finite number, or set ctx.sample.remove_sample = True to leave the rollout out",
    )


def _text(exc: BaseException) -> str:
    text = exc.message if isinstance(exc, OsmosisError) else describe(exc)
    return text[:_MESSAGE_LIMIT]
