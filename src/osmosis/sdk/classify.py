"""Turns an exception of user code into a `Failure`: which phase, whose fault, what text, the last frames.

Recognises model errors of vendor libraries by their shape, without importing one. Decides nothing about retries.
"""

from __future__ import annotations

import asyncio
import traceback

from pydantic import ValidationError as PydanticValidationError
from pydantic_core import PydanticCustomError

from ..errors import ModelError
from ..llm.failures import category_of
from ..records.rollout import Category, Failure, Phase
from .deadline import DeadlineExceeded
from .types import INVALID_REWARD, whole_text

_TAIL_LINES = 30
_CONNECTION_NAMES = {"APIConnectionError", "ConnectError", "ClientConnectorError", "ConnectionError"}
_TIMEOUT_NAMES = {"APITimeoutError", "ReadTimeout", "ConnectTimeout", "TimeoutException"}

WIRE_CATEGORIES = ("timeout", "validation_error", "http_error", "agent_error")
"""The words generation 0.3 knows for `err_category`."""


def traceback_tail(exc: BaseException, lines: int = _TAIL_LINES) -> str:
    """The last lines of the traceback, the exception included."""
    text = "".join(traceback.format_exception(type(exc), exc, exc.__traceback__))
    kept = whole_text(text).rstrip().splitlines()
    return "\n".join(kept[-lines:])


def describe(exc: BaseException) -> str:
    """`Type: text` in one paragraph; the type alone when there is no text."""
    text = whole_text(str(exc).strip())
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


def failure_of(exc: BaseException, phase: Phase) -> Failure:
    """The failure behind `exc`, raised by user code in `phase` (agent or score)."""
    model = _model_category(exc)
    if model is not None:
        own = exc.message if isinstance(exc, ModelError) else describe(exc)
        where = Phase.MODEL if phase is Phase.AGENT else phase
        return Failure(phase=where, category=model, message=own, traceback=traceback_tail(exc))
    if isinstance(exc, DeadlineExceeded):
        who = "the grader" if phase is Phase.SCORE else "the agent"
        return Failure(
            phase=phase,
            category=Category.TIMEOUT,
            message=f"{who} did not finish within {exc.seconds:g} s",
            fix="raise the time limit, or look for calls that block or never return",
        )
    invalid = _invalid_reward(exc)
    if invalid is not None:
        return Failure(
            phase=Phase.SCORE,
            category=Category.INVALID_SCORE,
            message=invalid,
            traceback=traceback_tail(exc),
            fix="compute a finite number, or set ctx.sample.remove_sample = True to leave the rollout out",
        )
    category = Category.SCORE_ERROR if phase is Phase.SCORE else Category.AGENT_ERROR
    if isinstance(exc, asyncio.TimeoutError):
        category = Category.TIMEOUT
    return Failure(phase=phase, category=category, message=describe(exc), traceback=traceback_tail(exc))


def wire_category(failure: Failure, exc: BaseException | None = None) -> str:
    """The one of `WIRE_CATEGORIES` that fits: other implementations know no more words."""
    if failure.category is Category.TIMEOUT:
        return "timeout"
    if failure.phase is Phase.MODEL:
        return "http_error"
    if failure.category is Category.INVALID_SCORE or isinstance(exc, PydanticValidationError):
        return "validation_error"
    return "agent_error"


def _invalid_reward(exc: BaseException) -> str | None:
    """What is wrong with the reward, when that is what `exc` is about."""
    if isinstance(exc, PydanticCustomError) and exc.type == INVALID_REWARD:
        return exc.message()
    if isinstance(exc, PydanticValidationError):
        return next((error["msg"] for error in exc.errors() if error["type"] == INVALID_REWARD), None)
    return None


def _model_category(exc: BaseException) -> Category | None:
    if isinstance(exc, ModelError):
        try:
            return Category(exc.category)
        except ValueError:
            return Category.UNKNOWN
    # OpenAI, LiteLLM, Anthropic and httpx errors all name themselves and carry the status in one of two places.
    names = {cls.__name__ for cls in type(exc).__mro__}
    if names & _TIMEOUT_NAMES:
        return Category.TIMEOUT
    status = getattr(exc, "status_code", None)
    if status is None:
        status = getattr(getattr(exc, "response", None), "status_code", None)
    if isinstance(status, int) and not isinstance(status, bool) and 400 <= status < 600:
        return category_of(status, str(exc))
    if names & (_CONNECTION_NAMES - {"ConnectionError"}):
        return Category.CONNECTION
    return None
