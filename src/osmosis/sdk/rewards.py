"""`@osmosis_reward`: marks a function as a reward and holds it to the documented signature.

It checks the shape when the module is imported and the result on every call; it never changes a score.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from .signatures import Signature, annotated, check_result, is_async

F = TypeVar("F", bound=Callable[..., Any])

_NAME = "osmosis_reward"
_FORM = "(solution_str: str, ground_truth: str, extra_info: dict = None) -> float"


def osmosis_reward(function: F) -> F:
    """Checks that `function` is `(solution_str: str, ground_truth: str, extra_info: dict = None) -> float`.

    Further parameters with defaults and `**kwargs` are fine, so is `async def`. At call time the keyword
    `data_source` is dropped and the result must be a finite float. Every rejection is a `TypeError`.
    """
    signature = Signature(function, _NAME)
    solution, truth, info = signature.first_three(_FORM)
    for parameter, expected in ((solution, str), (truth, str), (info, dict)):
        found = signature.annotation(parameter)
        if found is not expected:
            signature.refuse(f"parameter {parameter.name!r}", annotated(found), expected.__name__)
    if info.default is info.empty:
        signature.refuse("parameter 'extra_info'", "has no default", "extra_info: dict = None")
    signature.check_returns()
    return _wrapped(function, signature.name)


def _wrapped(function: F, name: str) -> F:
    if is_async(function):

        @functools.wraps(function)
        async def asynchronous(*args: Any, **kwargs: Any) -> float:
            kwargs.pop("data_source", None)
            return check_result(await function(*args, **kwargs), name, _NAME)

        asynchronous.__osmosis_kind__ = "reward"  # type: ignore[attr-defined]
        return asynchronous  # type: ignore[return-value]

    @functools.wraps(function)
    def plain(*args: Any, **kwargs: Any) -> float:
        kwargs.pop("data_source", None)
        return check_result(function(*args, **kwargs), name, _NAME)

    plain.__osmosis_kind__ = "reward"  # type: ignore[attr-defined]
    return plain  # type: ignore[return-value]
