"""From a finished trial to an `ExecutionResult`: the conversation, the verifier's reward, and whose failure it was.

It reads what Harbor kept (`TrialResult`, the agent's logs) and changes nothing. What a sandbox wrote is taken for the
conversation only: a reward comes from the verifier or from a grader.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis.base.json_types import JsonObject
from osmosis.records.rollout import Category, Failure, Message, Phase
from osmosis.sdk.classify import wire_category
from osmosis.sdk.execution import ExecutionResult, with_failure
from osmosis.sdk.types import RolloutSample

from .inside import RESULT_FILE, TRAJECTORY_FILE
from .trial_messages import read_messages

TIMEOUTS = {
    "AgentTimeoutError": Phase.AGENT,
    "AgentSetupTimeoutError": Phase.SETUP,
    "EnvironmentStartTimeoutError": Phase.SETUP,
    "VerifierTimeoutError": Phase.SCORE,
}
MODEL_ERRORS = {
    "ApiRateLimitError": Category.RATE_LIMIT,
    "ApiUsageLimitError": Category.RATE_LIMIT,
    "RateLimitError": Category.RATE_LIMIT,
    "ApiInternalServerError": Category.SERVER_ERROR,
    "ApiOverloadedError": Category.SERVER_ERROR,
    "ApiResponseStalledError": Category.SERVER_ERROR,
    "UnknownApiError": Category.SERVER_ERROR,
    "InternalServerError": Category.SERVER_ERROR,
    "ServiceUnavailableError": Category.SERVER_ERROR,
    "ApiConnectionClosedError": Category.CONNECTION,
    "NetworkConnectionError": Category.CONNECTION,
    "APIConnectionError": Category.CONNECTION,
    "ContextWindowExceededError": Category.CONTEXT_LENGTH,
    "ContextLengthExceededError": Category.CONTEXT_LENGTH,
    "AgentAuthenticationError": Category.AUTH,
    "AuthenticationError": Category.AUTH,
    "PermissionDeniedError": Category.AUTH,
    "ModelNotFoundError": Category.MODEL_NOT_FOUND,
    "ApiProviderResourceNotFoundError": Category.MODEL_NOT_FOUND,
    "NotFoundError": Category.MODEL_NOT_FOUND,
    "BadRequestError": Category.BAD_REQUEST,
}
"""What Harbor's agents raise, and LiteLLM in them, when the model's endpoint is at fault."""
VERIFIER_ERRORS = {
    *("RewardFileNotFoundError", "RewardFileEmptyError", "VerifierOutputParseError"),
    *("AddTestsDirError", "DownloadVerifierDirError"),
}
OUTPUT_TAIL = 2000


@dataclass(frozen=True, slots=True)
class Finished:
    """A trial that is over, and where its files are."""

    result: Any
    """Harbor's `TrialResult`."""
    folder: Path
    prompt: list[Message]
    """How the conversation began, for a trial whose agent left none."""
    workflow: bool
    """An `AgentWorkflow` ran, which leaves a record of its own."""
    graded: bool
    """A grader comes after the verifier, so there need be no reward."""

    @property
    def agent_folders(self) -> list[Path]:
        """The agent's logs: one folder, or one per step."""
        steps = [self.folder / "steps" / step.step_name / "agent" for step in self.result.step_results or ()]
        return steps or [self.folder / "agent"]


def execution_of(trial: Finished) -> ExecutionResult:
    """How the rollout ended, before our grader: with the verifier's reward where there is one."""
    records = [read_result(folder / RESULT_FILE) for folder in trial.agent_folders] if trial.workflow else []
    kept = [record for record in records if record is not None]
    result = ExecutionResult("success", sample=_sample(trial, kept))
    result.info = {key: value for record in kept for key, value in (record.get("info") or {}).items()}
    failed = next((record for record in kept if record.get("status") != "success"), None)
    if failed is not None and failed.get("failure"):
        return _failed_inside(result, failed)
    failure_found = _failure(trial)
    if failure_found is not None:
        return with_failure(result, failure_found, wire_category(failure_found))
    if trial.workflow and not kept:
        missing = Failure(
            phase=Phase.AGENT,
            category=Category.AGENT_ERROR,
            message=f"the workflow succeeded, but its {RESULT_FILE} was not copied out of the sandbox",
            fix="keep the files under /logs/agent, and do not filter agent logs in environment_config",
        )
        return with_failure(result, missing, "agent_error")
    return _rewarded(trial, result)


def _failed_inside(result: ExecutionResult, record: JsonObject) -> ExecutionResult:
    """With the failure that the workflow itself left in the sandbox."""
    failure = Failure.model_validate(record["failure"])
    with_failure(result, failure, str(record.get("err_category") or wire_category(failure)))
    result.status = "cancelled" if record.get("status") == "cancelled" else "failure"
    return result


def read_result(path: Path) -> JsonObject | None:
    """What `inside.py` left; None when it left nothing readable. A link is none: it would point into this machine."""
    if path.is_symlink():
        return None
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return body if isinstance(body, dict) else None


def _sample(trial: Finished, records: list[JsonObject]) -> RolloutSample:
    samples = [record["sample"] for record in records if record.get("sample")]
    if samples:
        made = _joined(samples)
    else:
        said = [m for folder in trial.agent_folders for m in read_messages(folder / TRAJECTORY_FILE)]
        made = RolloutSample(messages=said or trial.prompt)
    made.metrics.update(_usage(trial.result))
    made.extra_fields["harbor"] = _facts(trial)
    return made


def _joined(samples: list[JsonObject]) -> RolloutSample:
    """The samples of a task's steps as one, in their order."""
    made = RolloutSample(messages=[message for one in samples for message in one["messages"]])
    traces = [one["trajectory_messages"] for one in samples if one.get("trajectory_messages") is not None]
    made.trajectory_messages = [message for trace in traces for message in trace] if traces else None
    for one in samples:
        made.metrics.update(one.get("metrics") or {})
        made.extra_fields.update(one.get("extra_fields") or {})
    made.remove_sample = any(one.get("remove_sample") for one in samples)
    return made


def _usage(result: Any) -> JsonObject:
    prompt, cached, completion, cost = result.compute_token_cost_totals()
    found = {"prompt_tokens": prompt, "cached_tokens": cached, "completion_tokens": completion, "cost_usd": cost}
    return {name: value for name, value in found.items() if value is not None}


def _facts(trial: Finished) -> JsonObject:
    result = trial.result
    spans = {}
    for name in ("environment_setup", "agent_setup", "agent_execution", "verifier"):
        span = getattr(result, name)
        if span is not None and span.started_at and span.finished_at:
            spans[name] = round((span.finished_at - span.started_at).total_seconds(), 3)
    return {
        "task": result.task_name,
        "trial": result.trial_name,
        "agent": {"name": result.agent_info.name, "version": result.agent_info.version},
        "rewards": rewards_of(result),
        "seconds": spans,
    }


def rewards_of(result: Any) -> dict[str, float]:
    """What the verifier wrote, the finite numbers of it."""
    found = (result.verifier_result.rewards if result.verifier_result is not None else None) or {}
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def _rewarded(trial: Finished, result: ExecutionResult) -> ExecutionResult:
    """Puts the verifier's reward on the sample: the one called `reward`, or the only one."""
    sample = result.sample
    assert sample is not None
    rewards = rewards_of(trial.result)
    sample.metrics.update({f"verifier_{name}": value for name, value in rewards.items()})
    if "reward" in rewards or len(rewards) == 1:
        sample.reward = rewards.get("reward", next(iter(rewards.values())))
        result.graded = True
    elif trial.result.verifier_result is not None and not trial.graded:
        named = ", ".join(sorted(rewards)) or "nothing"
        failure = Failure(
            phase=Phase.SCORE,
            category=Category.INVALID_SCORE,
            message=f"the task's verifier wrote {named}, but no key called reward",
            fix="write a key called reward into /logs/verifier/reward.json, or give HarborBackend a grader",
        )
        return with_failure(result, failure, "validation_error")
    return result


def _failure(trial: Finished) -> Failure | None:
    result = trial.result
    raised = result.exception_info
    at = result
    for step in result.step_results or ():
        if raised is None and step.exception_info is not None:
            raised, at = step.exception_info, step
    if raised is None:
        return None
    kind, said = raised.exception_type, raised.exception_message
    phase = TIMEOUTS.get(kind) or (Phase.SCORE if kind in VERIFIER_ERRORS else _phase(at))
    fix = f"the trial's files are in {trial.folder}"
    if kind in TIMEOUTS:
        category, fix = Category.TIMEOUT, "raise the time limit, or look for calls that block or never return"
    elif kind in MODEL_ERRORS and phase is Phase.AGENT:
        phase, category = Phase.MODEL, MODEL_ERRORS[kind]
    else:
        category = {Phase.SCORE: Category.SCORE_ERROR, Phase.SETUP: Category.UNKNOWN}.get(phase, Category.AGENT_ERROR)
    message = f"{kind}: {said}" if said else kind
    if phase is Phase.SCORE and (tail := _verifier_tail(trial.folder)):
        message = f"{message}; the verifier's output ends with: {tail}"
    return Failure(
        phase=phase,
        category=category,
        message=message,
        traceback="\n".join(raised.exception_traceback.rstrip().splitlines()[-30:]),
        fix=fix,
    )


def _phase(at: Any) -> Phase:
    if at.verifier is not None:
        return Phase.SCORE
    return Phase.AGENT if at.agent_execution is not None else Phase.SETUP


def _verifier_tail(folder: Path) -> str:
    found = sorted(folder.glob("**/verifier/test-stdout.txt"))
    try:
        return found[-1].read_text(encoding="utf-8", errors="replace").strip()[-OUTPUT_TAIL:] if found else ""
    except OSError:
        return ""
