import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Literal, TypeVar, cast

from osmosis.base.jsonable import as_float
from osmosis.errors import LoadError
from osmosis.records.run.rollout import Message, Score
from osmosis.sdk.messages import solution_of
from osmosis.sdk.user_code import is_async

ScoreFunction = Callable[..., object]
"""`(solution_str, ground_truth, extra_info)` or `(messages, ground_truth, metadata)`, plain or async. Returns a number,
a `Score`, or a dict of either by name.
"""
Rule = Literal["majority", "mean", "median", "min", "max"]
F = TypeVar("F", bound=ScoreFunction)

_BOUNDS = "__osmosis_score_bounds__"


def score_function(*, min: float, max: float) -> Callable[[F], F]:
    """Declare that every score of the function (or reward of the grader class) lies between `min` and `max`; one
    outside is a failure.

    Raise ValueError unless `min` is below `max`. The function itself is not changed."""
    low, high = as_float(min), as_float(max)
    if not low < high:
        raise ValueError(f"min must be below max, got {low:g} and {high:g}")

    def mark(function: F) -> F:
        setattr(function, _BOUNDS, (low, high))
        return function

    return mark


def bounds_of(function: object) -> tuple[float, float] | None:
    return cast("tuple[float, float] | None", getattr(function, _BOUNDS, None))


def takes_conversation(name: str, function: ScoreFunction) -> bool:
    """Return whether the function takes the conversation (`messages, ground_truth, metadata`) and not the answer alone.
    Raise `LoadError` for one that can be called in neither form."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise LoadError(f"{name} has no readable signature", hint="give a Python function") from error
    first = next(iter(signature.parameters), None)
    forms = {"solution_str": ("ground_truth", "extra_info"), "messages": ("ground_truth", "metadata")}
    if first not in forms:
        raise LoadError(
            f"{name}{signature}: the first parameter decides how it is called, and must be named "
            "solution_str or messages",
            hint=f"def {name.rpartition(':')[2]}(solution_str, ground_truth, extra_info=None, **kwargs) -> float",
        )
    names = (first, *forms[first])
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        message = f"{name}{signature} cannot be called with {', '.join(f'{n}=' for n in names)}: {error}"
        raise LoadError(message, hint="add the parameter, or accept **kwargs") from error
    return first == "messages"


def vote(*graders: ScoreFunction, by: Rule = "majority") -> ScoreFunction:
    """Combine score functions into one: the most frequent score, of equally frequent ones the least (`majority`). Each
    grader's score is one of the result's `parts`. A grader that raises or returns no number has no vote, which the
    reason says; when half or more have none, the score failed."""
    if by not in _RULES:
        raise ValueError(f"by must be one of {', '.join(_RULES)}, got {by!r}")
    if not graders:
        raise ValueError("a vote needs at least one grader")
    named = _name_graders(graders)
    full = {name: takes_conversation(name, grader) for name, grader in named.items()}

    async def score(messages: list[Message], ground_truth: object, metadata: Mapping[str, object]) -> Score:
        answer = solution_of(messages)

        async def ask(name: str) -> object:
            grader = named[name]
            arguments: dict[str, object] = {"solution_str": answer, "extra_info": metadata}
            if full[name]:
                arguments = {"messages": messages, "metadata": metadata}
            arguments["ground_truth"] = ground_truth
            if is_async(grader):
                return await cast("Awaitable[object]", grader(**arguments))
            result = await asyncio.to_thread(grader, **arguments)
            return await result if inspect.isawaitable(result) else result

        return _count_votes(
            by, dict(zip(named, await asyncio.gather(*map(ask, named), return_exceptions=True), strict=True))
        )

    scales = {bounds_of(grader) for grader in graders}
    (scale,) = scales if len(scales) == 1 else (None,)
    return score if scale is None else score_function(min=scale[0], max=scale[1])(score)


def _majority(values: Sequence[float]) -> float:
    counted = Counter(values)
    return min(counted, key=lambda value: (-counted[value], value))


_RULES: dict[str, Callable[[Sequence[float]], float]] = {
    "majority": _majority,
    "mean": fmean,
    "median": median,
    "min": min,
    "max": max,
}


def _name_graders(graders: Sequence[ScoreFunction]) -> dict[str, ScoreFunction]:
    named: dict[str, ScoreFunction] = {}
    for i, grader in enumerate(graders, 1):
        name = getattr(grader, "__name__", type(grader).__name__)
        named[name if name not in named else f"{name}-{i}"] = grader
    return named


def _count_votes(by: Rule, votes: Mapping[str, object]) -> Score:
    parts: dict[str, float] = {}
    reasons: list[str] = []
    for name, result in votes.items():
        if isinstance(result, BaseException):
            if not isinstance(result, Exception):
                raise result
            reasons.append(f"{name}: no vote, {type(result).__name__}: {result}")
            continue
        try:
            parts[name] = as_float(result.value if isinstance(result, Score) else result)
        except ValueError as error:
            reasons.append(f"{name}: no vote, {error}")
            continue
        reason = result.reason if isinstance(result, Score) else None
        reasons.append(f"{name}: {parts[name]:g}" + (f", {reason}" if reason else ""))
    if 2 * len(parts) <= len(votes):
        raise ValueError(f"{len(votes) - len(parts)} of {len(votes)} graders have no vote: {'; '.join(reasons)}")
    return Score(_RULES[by](list(parts.values())), "\n".join(reasons), parts=parts)
