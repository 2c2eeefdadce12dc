"""What a score function may say of itself, and several of them as one.

`@score_function(min=0, max=5)` declares the scale of a function's scores: intervals use it, and a score outside it is a
failure. `vote(exact, judge_a, judge_b)` is a score function made of others, with each one's score and reason kept.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Literal, TypeVar, cast

from osmosis.base.numbers import as_float
from osmosis.errors import LoadError
from osmosis.records.rollout import Message, Score

from .calls import is_async
from .messages import solution_of

ScoreFunction = Callable[..., object]
"""`(solution_str, ground_truth, extra_info)` or `(messages, ground_truth, metadata)`, plain or async. Returns a number,
a `Score`, or a dict of either by name."""
Rule = Literal["majority", "mean", "median", "min", "max"]
F = TypeVar("F", bound=ScoreFunction)

_BOUNDS = "__osmosis_score_bounds__"


def score_function(*, min: float, max: float) -> Callable[[F], F]:
    """Declares that every score of the function lies between `min` and `max`.

    Raises ValueError unless `min` is below `max`. The function itself is not changed.
    """
    low, high = as_float(min), as_float(max)
    if not low < high:
        raise ValueError(f"min must be below max, got {low:g} and {high:g}")

    def mark(function: F) -> F:
        setattr(function, _BOUNDS, (low, high))
        return function

    return mark


def bounds_of(function: object) -> tuple[float, float] | None:
    """What `@score_function` declared; None when nothing did."""
    return cast("tuple[float, float] | None", getattr(function, _BOUNDS, None))


def is_full(name: str, function: ScoreFunction) -> bool:
    """Whether the function takes the conversation (`messages, ground_truth, metadata`) and not the answer alone. Raises
    LoadError for one that can be called in neither form."""
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
        raise LoadError(
            f"{name}{signature} cannot be called with {', '.join(f'{n}=' for n in names)}: {error}",
            hint="add the parameter, or accept **kwargs",
        ) from error
    return first == "messages"


def vote(*graders: ScoreFunction, by: Rule = "majority") -> ScoreFunction:
    """One score function of several: `majority` is the most frequent score, of equally frequent ones the least.

    Each grader's score is one of the result's `parts`, and its reason a line of the reason. A grader that raises or
    returns no number has no vote, which the reason says; when half of them or more have none, the score fails. Raises
    LoadError for a grader of neither form, ValueError for none and for an unknown rule.
    """
    if by not in _RULES:
        raise ValueError(f"by must be one of {', '.join(_RULES)}, got {by!r}")
    if not graders:
        raise ValueError("a vote needs at least one grader")
    named = _named(graders)
    full = {name: is_full(name, grader) for name, grader in named.items()}

    async def score(messages: list[Message], ground_truth: object, metadata: Mapping[str, object]) -> Score:
        answer = solution_of(messages)

        async def ask(name: str) -> object:
            grader = named[name]
            given: dict[str, object] = {"solution_str": answer, "ground_truth": ground_truth, "extra_info": metadata}
            if full[name]:
                given = {"messages": messages, "ground_truth": ground_truth, "metadata": metadata}
            if is_async(grader):
                return await cast("Awaitable[object]", grader(**given))
            found = await asyncio.to_thread(grader, **given)
            return await found if inspect.isawaitable(found) else found

        return _counted(
            by, dict(zip(named, await asyncio.gather(*map(ask, named), return_exceptions=True), strict=True))
        )

    scales = {bounds_of(grader) for grader in graders}
    (scale,) = scales if len(scales) == 1 else (None,)
    return score if scale is None else score_function(min=scale[0], max=scale[1])(score)


def _majority(values: Sequence[float]) -> float:
    counted = Counter(values)
    return min(counted, key=lambda value: (-counted[value], value))


_RULES: dict[str, Callable[[Sequence[float]], float]] = {
    "majority": _majority, "mean": fmean, "median": median, "min": min, "max": max,
}  # fmt: skip


def _named(graders: Sequence[ScoreFunction]) -> dict[str, ScoreFunction]:
    """The graders by their names; a second one of the same name gets a number."""
    found: dict[str, ScoreFunction] = {}
    for i, grader in enumerate(graders, 1):
        name = getattr(grader, "__name__", type(grader).__name__)
        found[name if name not in found else f"{name}-{i}"] = grader
    return found


def _counted(by: Rule, votes: Mapping[str, object]) -> Score:
    """The votes as one score."""
    parts: dict[str, float] = {}
    said: list[str] = []
    for name, found in votes.items():
        if isinstance(found, BaseException):
            if not isinstance(found, Exception):
                raise found
            said.append(f"{name}: no vote, {type(found).__name__}: {found}")
            continue
        try:
            parts[name] = as_float(found.value if isinstance(found, Score) else found)
        except ValueError as error:
            said.append(f"{name}: no vote, {error}")
            continue
        reason = found.reason if isinstance(found, Score) else None
        said.append(f"{name}: {parts[name]:g}" + (f", {reason}" if reason else ""))
    if 2 * len(parts) <= len(votes):
        raise ValueError(f"{len(votes) - len(parts)} of {len(votes)} graders have no vote: {'; '.join(said)}")
    return Score(_RULES[by](list(parts.values())), "\n".join(said), parts=parts)
