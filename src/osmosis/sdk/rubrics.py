import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Union, get_args, get_origin

from osmosis.base.jsonable import JsonObject, describe
from osmosis.sdk.judge_model import ModelInfo, resolve_judge
from osmosis.sdk.rewards import Prepare, Signature, annotated, check_calls

F = TypeVar("F", bound=Callable[..., Any])

_NAME = "osmosis_rubric"
_FORM = "(solution_str: str, ground_truth: str | None, extra_info: dict) -> float"


def osmosis_rubric(function: F) -> F:
    """Check that `function` is `(solution_str: str, ground_truth: str | None, extra_info: dict) -> float`.

    None of the three has a default; further parameters with defaults and `**kwargs` are fine, so is `async def`.
    At call time: the keyword `data_source` is dropped; when `extra_info` is empty or holds any of provider, model,
    rubric, the whole configuration is checked (types, bounds, key), `model_info_overrides` is merged in and it is
    offered as `extra_info["model_info"]`; the result must be a finite float. Rejections are `TypeError`, bounds
    `ValueError`, a missing key `MissingAPIKeyError`."""
    signature = Signature(function, _NAME)
    solution, truth, info = signature.first_three(_FORM)
    annotation = signature.annotation(solution)
    if not (inspect.isclass(annotation) and issubclass(annotation, str)):
        signature.refuse("parameter 'solution_str'", annotated(annotation), "str")
    annotation = signature.annotation(truth)
    if not _text_or_none(annotation):
        signature.refuse("parameter 'ground_truth'", annotated(annotation), "str or str | None")
    annotation = signature.annotation(info)
    if annotation is not dict:
        signature.refuse("parameter 'extra_info'", annotated(annotation), "dict")
    for parameter in (solution, truth, info):
        if parameter.default is not parameter.empty:
            signature.refuse(f"parameter {parameter.name!r}", f"has the default {parameter.default!r}", "none")
    signature.check_returns()
    return check_calls(function, signature.name, _NAME, _bound_call(function, signature.name))


def _bound_call(function: Callable[..., object], name: str) -> Prepare:
    bind = inspect.signature(function).bind

    def prepare(args: tuple[object, ...], kwargs: JsonObject) -> tuple[tuple[Any, ...], JsonObject]:
        kwargs.pop("data_source", None)
        try:
            bound = bind(*args, **kwargs)
        except TypeError as exc:
            raise TypeError(f"@{_NAME}: {name}: {exc}; call it as {_FORM}") from None
        solution, truth, info = (bound.arguments[key] for key in ("solution_str", "ground_truth", "extra_info"))
        if not isinstance(solution, str):
            _refuse(name, "solution_str", solution, "str")
        if truth is not None and not isinstance(truth, str):
            _refuse(name, "ground_truth", truth, "str or None")
        if not isinstance(info, Mapping):
            _refuse(name, "extra_info", info, "dict")
        if not info or any(key in info for key in ("provider", "model", "rubric")):
            bound.arguments["extra_info"] = merged_configuration(dict(info), name)
        return bound.args, bound.kwargs

    return prepare


def merged_configuration(info: JsonObject, name: str) -> JsonObject:
    overrides = info.get("model_info_overrides") or {}
    if not isinstance(overrides, Mapping):
        _refuse(name, "extra_info['model_info_overrides']", overrides, "dict")
    own_info = info.get("model_info")
    base = dict(own_info) if isinstance(own_info, Mapping) else {}
    merged = {key: info[key] for key in ModelInfo.__annotations__ if info.get(key) is not None}
    model_info = {**base, **merged, **overrides}
    rubric = info.get("rubric")
    if not isinstance(rubric, str) or not rubric.strip():
        _refuse(name, "extra_info['rubric']", rubric, "a non-empty str")
    for key in ("system_prompt", "api_key", "api_key_env", "api_base", "original_input", "reasoning_effort"):
        if model_info.get(key) is not None and not isinstance(model_info[key], str):
            _refuse(name, f"extra_info[{key!r}]", model_info[key], "str")
    for key in ("score_min", "score_max", "timeout"):
        value = model_info.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            _refuse(name, f"extra_info[{key!r}]", value, "a number")
    low, high = model_info.get("score_min", 0.0), model_info.get("score_max", 1.0)
    if not low < high:
        raise ValueError(f"@{_NAME}: {name}: score_max must be greater than score_min, got {low} to {high}")
    try:
        resolve_judge(model_info)
    except TypeError as exc:
        raise TypeError(f"@{_NAME}: {name}: extra_info: {exc}") from None
    return {**info, **overrides, "model_info": model_info}


def _text_or_none(annotation: object) -> bool:
    if get_origin(annotation) in (Union, types.UnionType):
        parts = get_args(annotation)
        texts = [part for part in parts if part is not type(None)]
        return len(parts) == 2 and len(texts) == 1 and inspect.isclass(texts[0]) and issubclass(texts[0], str)
    return inspect.isclass(annotation) and issubclass(annotation, str)


def _refuse(name: str, subject: str, actual: object, expected: str) -> None:
    raise TypeError(f"@{_NAME}: {name}: {subject} is {describe(actual)}; expected {expected}")
