import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osmosis.base.files import read_object
from osmosis.base.jsonable import JsonObject
from osmosis.records.run.rollout import Category, Failure, Message, Phase
from osmosis.sdk.backend import ExecutionResult, with_failure
from osmosis.sdk.classify import wire_category
from osmosis.sdk.harbor.entrypoint import RESULT_FILE, TRAJECTORY_FILE
from osmosis.sdk.harbor.trials import text_of
from osmosis.sdk.types import RolloutSample

TIMEOUTS = {
    "AgentTimeoutError": Phase.AGENT,
    "AgentSetupTimeoutError": Phase.SETUP,
    "EnvironmentStartTimeoutError": Phase.SETUP,
    "VerifierTimeoutError": Phase.SCORE,
}
_ERRORS_BY_CATEGORY = {
    Category.RATE_LIMIT: ("ApiRateLimitError", "ApiUsageLimitError", "RateLimitError"),
    Category.SERVER_ERROR: (
        *("ApiInternalServerError", "ApiOverloadedError", "ApiResponseStalledError", "UnknownApiError"),
        *("InternalServerError", "ServiceUnavailableError"),
    ),
    Category.CONNECTION: ("ApiConnectionClosedError", "NetworkConnectionError", "APIConnectionError"),
    Category.CONTEXT_LENGTH: ("ContextWindowExceededError", "ContextLengthExceededError"),
    Category.AUTH: ("AgentAuthenticationError", "AuthenticationError", "PermissionDeniedError"),
    Category.MODEL_NOT_FOUND: ("ModelNotFoundError", "ApiProviderResourceNotFoundError", "NotFoundError"),
    Category.BAD_REQUEST: ("BadRequestError",),
}
MODEL_ERRORS = {name: category for category, names in _ERRORS_BY_CATEGORY.items() for name in names}
VERIFIER_ERRORS = {
    *("RewardFileNotFoundError", "RewardFileEmptyError", "VerifierOutputParseError"),
    *("AddTestsDirError", "DownloadVerifierDirError"),
}
OUTPUT_TAIL = 2000


@dataclass(frozen=True, slots=True)
class FinishedTrial:
    result: Any
    folder: Path
    prompt: list[Message]
    workflow: bool
    graded: bool

    @property
    def agent_folders(self) -> list[Path]:
        steps = [self.folder / "steps" / step.step_name / "agent" for step in self.result.step_results or ()]
        return steps or [self.folder / "agent"]


def build_result(trial: FinishedTrial) -> ExecutionResult:
    records = [read_result(folder / RESULT_FILE) for folder in trial.agent_folders] if trial.workflow else []
    left = [record for record in records if record is not None]
    samples = [record["sample"] for record in left if record.get("sample")]
    if samples:
        sample = _join_steps(samples)
    else:
        messages = [m for folder in trial.agent_folders for m in read_messages(folder / TRAJECTORY_FILE)]
        sample = RolloutSample(messages=messages or trial.prompt)
    prompt, cached, completion, cost = trial.result.compute_token_cost_totals()
    usage = {"prompt_tokens": prompt, "cached_tokens": cached, "completion_tokens": completion, "cost_usd": cost}
    sample.metrics.update({name: value for name, value in usage.items() if value is not None})
    sample.extra_fields["harbor"] = _facts(trial)
    result = ExecutionResult("success", sample=sample)
    result.info = {key: value for record in left for key, value in (record.get("info") or {}).items()}
    failed = next((record for record in left if record.get("status") != "success"), None)
    if failed is not None and failed.get("failure"):
        failure = Failure.model_validate(failed["failure"])
        with_failure(result, failure, str(failed.get("err_category") or wire_category(failure)))
        result.status = "cancelled" if failed.get("status") == "cancelled" else "failure"
        return result
    failure_found = _failure(trial)
    if failure_found is not None:
        return with_failure(result, failure_found, wire_category(failure_found))
    if trial.workflow and not left:
        missing = Failure(
            phase=Phase.AGENT,
            category=Category.AGENT_ERROR,
            message=f"the workflow succeeded, but its {RESULT_FILE} was not copied out of the sandbox",
            fix="keep the files under /logs/agent, and do not filter agent logs in environment_config",
        )
        return with_failure(result, missing, "agent_error")
    return _put_reward(trial, result)


def read_result(path: Path) -> JsonObject | None:
    return None if path.is_symlink() else read_object(path) or None


def _join_steps(samples: list[JsonObject]) -> RolloutSample:
    joined = RolloutSample(messages=[message for sample in samples for message in sample["messages"]])
    traces = [sample["trajectory_messages"] for sample in samples if sample.get("trajectory_messages") is not None]
    joined.trajectory_messages = [message for trace in traces for message in trace] if traces else None
    for sample in samples:
        joined.metrics.update(sample.get("metrics") or {})
        joined.extra_fields.update(sample.get("extra_fields") or {})
    joined.remove_sample = any(sample.get("remove_sample") for sample in samples)
    return joined


def _facts(trial: FinishedTrial) -> JsonObject:
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
    rewards = (result.verifier_result.rewards if result.verifier_result is not None else None) or {}
    return {name: float(value) for name, value in rewards.items() if math.isfinite(value)}


def _put_reward(trial: FinishedTrial, result: ExecutionResult) -> ExecutionResult:
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


def _failure(trial: FinishedTrial) -> Failure | None:
    result = trial.result
    raised = result.exception_info
    at = result
    for step in result.step_results or ():
        if raised is None and step.exception_info is not None:
            raised, at = step.exception_info, step
    if raised is None:
        return None
    kind, text = raised.exception_type, raised.exception_message
    reached = Phase.AGENT if at.agent_execution is not None else Phase.SETUP
    is_verifying = at.verifier is not None or kind in VERIFIER_ERRORS
    phase = TIMEOUTS.get(kind) or (Phase.SCORE if is_verifying else reached)
    fix = f"the trial's files are in {trial.folder}"
    if kind in TIMEOUTS:
        category, fix = Category.TIMEOUT, "raise the time limit, or look for calls that block or never return"
    elif kind in MODEL_ERRORS and phase is Phase.AGENT:
        phase, category = Phase.MODEL, MODEL_ERRORS[kind]
    else:
        category = {Phase.SCORE: Category.SCORE_ERROR, Phase.SETUP: Category.UNKNOWN}.get(phase, Category.AGENT_ERROR)
    message = f"{kind}: {text}" if text else kind
    if phase is Phase.SCORE and (tail := _verifier_tail(trial.folder)):
        message = f"{message}; the verifier's output ends with: {tail}"
    return Failure(
        phase=phase,
        category=category,
        message=message,
        traceback="\n".join(raised.exception_traceback.rstrip().splitlines()[-30:]),
        fix=fix,
    )


def _verifier_tail(folder: Path) -> str:
    files = sorted(folder.glob("**/verifier/test-stdout.txt"))
    try:
        return files[-1].read_text(encoding="utf-8", errors="replace").strip()[-OUTPUT_TAIL:] if files else ""
    except OSError:
        return ""


ROLES = {"system": "system", "user": "user", "agent": "assistant"}


def read_messages(path: Path) -> list[Message]:
    steps = (read_result(path) or {}).get("steps")
    messages: list[Message] = []
    for step in steps if isinstance(steps, list) else ():
        if isinstance(step, dict) and not step.get("is_copied_context"):
            messages.extend(_of_step(step))
    return messages


def _of_step(step: JsonObject) -> list[Message]:
    content = text_of({"content": step.get("message")})
    message: Message = {"role": ROLES.get(str(step.get("source")), "user"), "content": content}
    if step.get("reasoning_content"):
        message["reasoning_content"] = step["reasoning_content"]
    calls = [call for call in step.get("tool_calls") or () if isinstance(call, dict)]
    if calls:
        message["tool_calls"] = [_call(call) for call in calls]
    messages = [message]
    call_ids = {call["id"] for call in message.get("tool_calls", ())}
    for result in (step.get("observation") or {}).get("results") or ():
        source = result.get("source_call_id")
        content = text_of(result)
        if source in call_ids:
            messages.append({"role": "tool", "tool_call_id": source, "content": content})
        elif len(call_ids) == 1:
            messages.append({"role": "tool", "tool_call_id": next(iter(call_ids)), "content": content})
        elif content:
            # What the environment says without having been called is said by nobody but the user.
            messages.append({"role": "user", "content": content})
    return messages


def _call(call: Mapping[str, object]) -> JsonObject:
    arguments = call.get("arguments")
    written = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    function = {"name": str(call.get("function_name") or ""), "arguments": written}
    return {"id": str(call.get("tool_call_id") or ""), "type": "function", "function": function}
