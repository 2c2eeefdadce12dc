"""Turns what user code raises into a `Failure`: phase, category, one paragraph, the last frames of the traceback."""

from __future__ import annotations

import traceback

from osmosis.errors import ModelError
from osmosis.records.plan import EvalPlan
from osmosis.records.rollout import Category, Failure, Phase
from osmosis.sdk.exceptions import ToolServerLost

INFRASTRUCTURE = frozenset(
    c.value for c in Category if c not in (Category.AGENT_ERROR, Category.SCORE_ERROR, Category.INVALID_SCORE)
)
"""Categories that say nothing about the agent's work."""

_TAIL_LINES = 12


def tail(error: BaseException) -> str:
    """The last lines of the traceback."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return "\n".join(text.rstrip().splitlines()[-_TAIL_LINES:])


def failure_of(error: BaseException, phase: Phase = Phase.AGENT) -> Failure:
    """The failure behind an exception; a model call that the agent did not survive is of the model phase."""
    model = _model_error(error)
    if model is not None:
        return Failure(
            phase=Phase.MODEL, category=Category(model.category), message=model.message[:2000], fix=model.hint
        )
    if isinstance(error, ToolServerLost):
        return Failure(
            phase=Phase.SETUP,
            category=Category.SERVER_DIED,
            message=error.message[:2000],
            fix="start the MCP server again, then resume with --retry-failed",
        )
    text = str(error).strip()
    message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    category = Category.SCORE_ERROR if phase is Phase.SCORE else Category.AGENT_ERROR
    return Failure(phase=phase, category=category, message=message[:2000], traceback=tail(error))


def overrun(plan: EvalPlan) -> Failure:
    """The agent took longer than it may."""
    return Failure(
        phase=Phase.AGENT,
        category=Category.TIMEOUT,
        message=f"the agent did not finish within {plan.timeouts.agent_s:g} s",
        fix="raise --agent-timeout, or look for calls that never return",
    )


def _model_error(error: BaseException | None) -> ModelError | None:
    """The model error itself, or the one that this was raised from."""
    for _ in range(8):
        if error is None or isinstance(error, ModelError):
            return error
        error = error.__cause__
    return None
