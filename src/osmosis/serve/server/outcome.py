"""How a rollout ended, before it is worded for one generation of the protocol. An outcome is made once per rollout
and never changed; wording it twice gives the same bytes, so a redelivered result is the same result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from osmosis.records.rollout import Category, Failure, Phase
from osmosis.records.wire import WireSample
from osmosis.sdk.classify import describe, traceback_tail
from osmosis.sdk.types import json_safe

if TYPE_CHECKING:
    from osmosis.sdk.backend import ExecutionResult

Ending = Literal["success", "failure", "cancelled"]

TRACEBACK_CHARS = 4000


@dataclass(frozen=True, slots=True)
class Outcome:
    """One terminal result."""

    status: Ending
    sample: WireSample | None = None
    failure: Failure | None = None
    category: str | None = None
    """The protocol's own word for why: timeout, validation_error, http_error, agent_error."""

    @property
    def agent_finished(self) -> bool:
        """The workflow itself succeeded; at most the grading failed."""
        return self.status == "success" or (self.failure is not None and self.failure.phase is Phase.SCORE)

    @property
    def message(self) -> str | None:
        return self.failure.message if self.failure else None

    @property
    def errors(self) -> dict[str, Any]:
        """The keys of every message that reports a failure."""
        return {"err_message": self.message, "err_category": self.category, "failure": self.failure}


def failed(message: str, *, phase: Phase = Phase.AGENT, category: Category = Category.AGENT_ERROR) -> Outcome:
    """An end that the server itself decided on."""
    word = "timeout" if category is Category.TIMEOUT else "agent_error"
    return Outcome("failure", failure=Failure(phase=phase, category=category, message=message), category=word)


def cancelled(message: str) -> Outcome:
    failure = Failure(phase=Phase.AGENT, category=Category.CANCELLED, message=message)
    return Outcome("cancelled", failure=failure, category="agent_error")


def crashed(exc: BaseException) -> Outcome:
    """What runs rollouts raised instead of answering: the message names the exception."""
    tail = traceback_tail(exc)[-TRACEBACK_CHARS:]
    failure = Failure(phase=Phase.AGENT, category=Category.AGENT_ERROR, message=describe(exc), traceback=tail)
    return Outcome("failure", failure=failure, category="agent_error")


def from_execution(result: ExecutionResult) -> Outcome:
    """The outcome of a backend's result; what the workflow reported rides in the sample's `extra_fields`."""
    sample = result.sample.to_wire() if result.sample is not None else None
    if sample is not None and result.info:
        sample.extra_fields = {**json_safe(result.info, "info"), **sample.extra_fields}
    failure = result.failure
    if failure is None and result.status != "success":
        failure = Failure(
            phase=result.err_phase or Phase.AGENT,
            category=Category.TIMEOUT if result.err_category == "timeout" else Category.AGENT_ERROR,
            message=result.err_message or "the backend gave no reason",
            traceback=result.traceback,
        )
    return Outcome(status=result.status, sample=sample, failure=failure, category=result.err_category)
