"""Scores a text by a rubric with a language model: `evaluate_rubric` and `evaluate_rubric_async`.

A judge that fails is an exception, never a score. Passing trouble (rate limits, 5xx, an unreadable reply) is
repeated; `Retry-After` is honoured. LiteLLM is loaded at the first call that needs it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, Literal, overload

from ..base.redact import Redactor
from ..errors import ModelError
from ..llm import ChatRequest, Completion, Model, open_model
from ..llm.litellm_model import supports_schema
from ..records.plan import Retry
from ..records.rollout import Category, Usage
from .judge_model import (
    DEFAULT_API_KEY_ENV,
    DEFAULT_REQUEST_TIMEOUT_SECONDS,
    JudgeModel,
    MissingAPIKeyError,
    ModelInfo,
    ModelNotFoundError,
    ProviderRequestError,
    ensure_api_key_available,
    info_of,
    resolve_judge,
)
from .judge_prompt import RESPONSE_SCHEMA, BadReply, Question, read_reply
from .judge_result import RewardRubricRunResult, RubricResult, Verdict, background, collect_judge_usage, count_usage

__all__ = [
    "DEFAULT_API_KEY_ENV",
    "DEFAULT_REQUEST_TIMEOUT_SECONDS",
    "Judge",
    "MissingAPIKeyError",
    "ModelInfo",
    "ModelNotFoundError",
    "ProviderRequestError",
    "RewardRubricRunResult",
    "RubricResult",
    "Verdict",
    "collect_judge_usage",
    "ensure_api_key_available",
    "evaluate_rubric",
    "evaluate_rubric_async",
    "judge_solution",
]

JUDGE_RETRY = Retry(max_attempts=4, base_delay_s=0.5, max_delay_s=15.0, rate_limit_budget_s=120.0)
_READS = 2
"""How often an unreadable reply is asked for again in all."""


class Judge:
    """A judge that is asked many times: one connection, made at the first question, and one key.

    `async with Judge(model_info) as judge:`, or `close()` at the end.
    """

    def __init__(
        self,
        model_info: Mapping[str, Any],
        *,
        timeout: float | None = None,
        environ: Mapping[str, str] | None = None,
        retry: Retry = JUDGE_RETRY,
    ) -> None:
        self.resolved: JudgeModel = resolve_judge(model_info, timeout=timeout, environ=environ)
        self.info = dict(model_info)
        self._retry = retry
        self._model: Model | None = None
        self._schema_refused = False

    async def __aenter__(self) -> Judge:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _opened(self) -> Model:
        if self._model is None:
            judge = self.resolved
            try:
                self._model = open_model(
                    judge.spec, api_key=judge.api_key, retry=self._retry, timeout_s=judge.timeout_s
                )
            except ModelError as exc:
                raise self._error(exc) from exc
        return self._model

    async def close(self) -> None:
        """Lets go of the connection; the next question makes a new one."""
        if self._model is not None:
            await self._model.close()
            self._model = None

    async def ask(self, question: Question) -> Verdict:
        """One judgement; `ProviderRequestError` or `ModelNotFoundError` when there is none."""
        started = time.monotonic()
        usage = Usage()
        for read in range(1, _READS + 1):
            completion = await self._complete(question)
            usage = usage + completion.usage
            count_usage(completion.usage)
            try:
                score, explanation = read_reply(_text(completion), question.low, question.high)
            except BadReply as exc:
                if read == _READS:
                    raise ProviderRequestError(
                        self.resolved.provider, self.resolved.model, f"{exc}: {_text(completion)[:200]!r}"
                    ) from exc
                continue
            return Verdict(score, explanation, usage, (time.monotonic() - started) * 1000, _raw(completion))
        raise AssertionError("unreachable: the last read returns or raises")

    async def _complete(self, question: Question) -> Completion:
        model = self._opened()
        messages = question.messages()
        if not self._schema_refused:
            try:
                return await model.complete(ChatRequest(messages, params={"response_format": self._format()}))
            except ModelError as exc:
                if exc.category != Category.BAD_REQUEST.value or "format" not in str(exc).lower():
                    raise self._error(exc) from exc
                self._schema_refused = True
        try:
            return await model.complete(ChatRequest(messages))
        except ModelError as exc:
            raise self._error(exc) from exc

    def _format(self) -> dict[str, Any]:
        schema = {"name": "reward_rubric_response", "strict": True, "schema": RESPONSE_SCHEMA}
        if self.resolved.spec.kind == "litellm" and not supports_schema(self.resolved.spec.name):
            return {"type": "json_object"}
        return {"type": "json_schema", "json_schema": schema}

    def _error(self, exc: ModelError) -> ProviderRequestError:
        cls = ModelNotFoundError if exc.category == Category.MODEL_NOT_FOUND.value else ProviderRequestError
        # Providers like to quote the key they refuse.
        detail = Redactor(filter(None, [self.resolved.api_key])).text(exc.message)
        error = cls(self.resolved.provider, self.resolved.model, detail)
        error.hint = exc.hint
        error.details["category"] = exc.category
        return error


@overload
def evaluate_rubric(
    rubric: str,
    solution_str: str,
    model_info: ModelInfo | Mapping[str, Any],
    *,
    ground_truth: str | None = ...,
    original_input: str | None = ...,
    metadata: dict[str, Any] | None = ...,
    score_min: float | None = ...,
    score_max: float | None = ...,
    timeout: float | None = ...,
    return_details: Literal[False] = ...,
) -> float: ...
@overload
def evaluate_rubric(
    rubric: str,
    solution_str: str,
    model_info: ModelInfo | Mapping[str, Any],
    *,
    ground_truth: str | None = ...,
    original_input: str | None = ...,
    metadata: dict[str, Any] | None = ...,
    score_min: float | None = ...,
    score_max: float | None = ...,
    timeout: float | None = ...,
    return_details: Literal[True],
) -> RewardRubricRunResult: ...
def evaluate_rubric(
    rubric: str,
    solution_str: str,
    model_info: ModelInfo | Mapping[str, Any],
    *,
    ground_truth: str | None = None,
    original_input: str | None = None,
    metadata: dict[str, Any] | None = None,
    score_min: float | None = None,
    score_max: float | None = None,
    timeout: float | None = None,
    return_details: bool = False,
) -> float | RewardRubricRunResult:
    """The judge's score within [score_min, score_max] (0 to 1 unless said), or all details.

    Bounds and `original_input` given here win over `model_info`'s. `timeout` is seconds for one attempt. Raises
    `TypeError` for missing text, `ValueError` for bounds, `MissingAPIKeyError`, `ModelNotFoundError`,
    `ProviderRequestError`. Blocks its thread; in coroutines use `evaluate_rubric_async`.
    """
    judge, question = _prepare(
        rubric, solution_str, model_info, ground_truth, original_input, metadata, (score_min, score_max), timeout
    )
    verdict = background.run(_ask(judge, question))
    return verdict.details() if return_details else verdict.score


async def evaluate_rubric_async(
    rubric: str,
    solution_str: str,
    model_info: ModelInfo | Mapping[str, Any],
    *,
    ground_truth: str | None = None,
    original_input: str | None = None,
    metadata: dict[str, Any] | None = None,
    score_min: float | None = None,
    score_max: float | None = None,
    timeout: float | None = None,
    return_details: bool = False,
) -> float | RewardRubricRunResult:
    """`evaluate_rubric` without blocking."""
    judge, question = _prepare(
        rubric, solution_str, model_info, ground_truth, original_input, metadata, (score_min, score_max), timeout
    )
    verdict = await _ask(judge, question)
    return verdict.details() if return_details else verdict.score


def judge_solution(
    *,
    solution_str: str,
    rubric: str,
    model: str,
    ground_truth: str | None = None,
    original_input: str | None = None,
    metadata: dict[str, Any] | None = None,
    score_min: float = 0.0,
    score_max: float = 1.0,
    api_key: str | None = None,
    timeout: float | None = None,
    system_prompt: str | None = None,
) -> RubricResult:
    """Generation 0.3's `evaluate_rubric`: the judge by one name (`provider/model`, or a name whose family tells; any
    other name is left to LiteLLM).

    In a coroutine it returns at once: `await` the result (looking at it without waiting blocks). Everywhere else it
    blocks until the verdict is there. Raises as `evaluate_rubric` does.
    """
    info: dict[str, Any] = dict(info_of(model))
    if api_key:
        info["api_key"] = api_key
    if system_prompt:
        info["system_prompt"] = system_prompt
    judge, question = _prepare(
        rubric, solution_str, info, ground_truth, original_input, metadata, (score_min, score_max), timeout
    )

    async def judged() -> RubricResult:
        verdict = await _ask(judge, question)
        return RubricResult(verdict.score, verdict.explanation)

    return background.result_of(judged())


def make_question(
    rubric: str,
    solution_str: str,
    info: Mapping[str, Any],
    *,
    ground_truth: str | None = None,
    original_input: str | None = None,
    metadata: dict[str, Any] | None = None,
    bounds: tuple[float | None, float | None] = (None, None),
) -> Question:
    """A checked question; `TypeError` for missing text, `ValueError` for bounds that are none."""
    for name, text in (("rubric", rubric), ("solution_str", solution_str)):
        if not isinstance(text, str) or not text.strip():
            raise TypeError(f"{name} must be a non-empty string, got {text!r}")
    low = _bound("score_min", bounds[0], info, 0.0)
    high = _bound("score_max", bounds[1], info, 1.0)
    if high <= low:
        raise ValueError(f"score_max must be greater than score_min, got {low} to {high}")
    given = original_input if original_input is not None else info.get("original_input")
    return Question(
        rubric=rubric,
        solution=solution_str,
        low=low,
        high=high,
        system_prompt=_unblank(info.get("system_prompt")),
        original_input=_unblank(given),
        ground_truth=_unblank(ground_truth),
        metadata=metadata,
    )


def _prepare(
    rubric: str,
    solution_str: str,
    model_info: Mapping[str, Any],
    ground_truth: str | None,
    original_input: str | None,
    metadata: dict[str, Any] | None,
    bounds: tuple[float | None, float | None],
    timeout: float | None,
) -> tuple[Judge, Question]:
    judge = Judge(model_info, timeout=timeout)
    question = make_question(
        rubric,
        solution_str,
        model_info,
        ground_truth=ground_truth,
        original_input=original_input,
        metadata=metadata,
        bounds=bounds,
    )
    return judge, question


async def _ask(judge: Judge, question: Question) -> Verdict:
    async with judge:
        return await judge.ask(question)


def _bound(name: str, given: float | None, info: Mapping[str, Any], default: float) -> float:
    value = given if given is not None else info.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value!r}")
    return float(value)


def _unblank(text: Any) -> str | None:
    return text if isinstance(text, str) and text.strip() else None


def _text(completion: Completion) -> str:
    content = completion.message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _raw(completion: Completion) -> dict[str, Any]:
    usage = completion.usage
    return {
        "id": completion.raw_id,
        "model": completion.model,
        "choices": [{"index": 0, "message": completion.message, "finish_reason": completion.finish_reason}],
        "usage": {**usage.model_dump(), "total_tokens": usage.total_tokens},
    }
