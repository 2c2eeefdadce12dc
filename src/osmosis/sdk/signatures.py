"""What the reward and rubric decorators share: exact checks of a function's signature and of its result.

Every rejection is a `TypeError` that names the function, the parameter, what was found and what is expected.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, NoReturn

_EMPTY = inspect.Parameter.empty


class Signature:
    """The signature of one function, with annotations resolved where they can be."""

    def __init__(self, function: Callable[..., Any], decorator: str) -> None:
        if not callable(function):
            raise TypeError(f"@{decorator} decorates functions, got {type(function).__name__}")
        self.function = function
        self.decorator = decorator
        self.name = getattr(function, "__qualname__", None) or type(function).__name__
        try:
            self._signature = inspect.signature(function)
        except ValueError as exc:
            raise TypeError(f"@{decorator} cannot read the parameters of {self.name}: {exc}") from exc
        self.parameters = list(self._signature.parameters.values())

    def refuse(self, what: str, found: str, expected: str) -> NoReturn:
        """`TypeError: @osmosis_reward: f: parameter 'x' is ...; expected ...`."""
        raise TypeError(f"@{self.decorator}: {self.name}: {what} {found}; expected {expected}")

    def first_three(self, form: str) -> tuple[inspect.Parameter, inspect.Parameter, inspect.Parameter]:
        """The first three parameters; `form` is the whole signature expected, for the message."""
        names = ("solution_str", "ground_truth", "extra_info")
        for position, (name, ordinal) in enumerate(zip(names, ("first", "second", "third"), strict=True)):
            found = self.parameters[position] if position < len(self.parameters) else None
            if found is None or found.kind in (found.VAR_KEYWORD, found.VAR_POSITIONAL):
                count = sum(p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in self.parameters)
                self.refuse(f"the {ordinal} parameter {name!r}", f"is missing (found {count})", form)
            if found.name != name:
                self.refuse(f"the {ordinal} parameter", f"is named {found.name!r}", f"{name!r}, as in {form}")
            if found.kind is not found.POSITIONAL_OR_KEYWORD:
                self.refuse(f"parameter {name!r}", f"is {found.kind.description}", "one that can be given both ways")
        for extra in self.parameters[3:]:
            if extra.kind not in (extra.VAR_KEYWORD, extra.VAR_POSITIONAL) and extra.default is _EMPTY:
                self.refuse(f"parameter {extra.name!r}", "has no default", "a default on every further parameter")
        return self.parameters[0], self.parameters[1], self.parameters[2]

    def annotation(self, parameter: inspect.Parameter) -> Any:
        """The parameter's annotation, postponed or quoted ones evaluated; `Parameter.empty` when there is none."""
        return self._resolved(parameter.annotation)

    def returns(self) -> Any:
        return self._resolved(self._signature.return_annotation)

    def check_returns(self) -> None:
        """A return annotation may be missing; one that names another plain class is refused."""
        found = self.returns()
        if found is None or (inspect.isclass(found) and found is not _EMPTY and not issubclass(found, float)):
            self.refuse("the return annotation", f"is {spell(found)}", "float")

    def _resolved(self, annotation: Any) -> Any:
        scope = getattr(inspect.unwrap(self.function), "__globals__", {})
        # A quoted annotation in a module with postponed annotations is a string within a string.
        for _ in range(2):
            if not isinstance(annotation, str):
                break
            try:
                # One by one, so that another parameter's name that exists only for type checkers hides nothing.
                annotation = eval(annotation, scope)
            except Exception:  # noqa: BLE001 - any expression may stand there; the text itself is then shown
                break
        return annotation


def annotated(annotation: Any) -> str:
    """What is to be said of an annotation that is not the right one."""
    return "has no annotation" if annotation is _EMPTY else f"is annotated {spell(annotation)}"


def spell(annotation: Any) -> str:
    """An annotation as a person would write it."""
    if inspect.isclass(annotation) and not hasattr(annotation, "__args__"):
        return annotation.__name__
    return annotation if isinstance(annotation, str) else str(annotation).replace("typing.", "")


def check_result(result: Any, name: str, decorator: str) -> float:
    """The result when it is a finite float, else `TypeError`."""
    if not isinstance(result, float):
        raise TypeError(f"@{decorator}: {name} returned {type(result).__name__} ({str(result)[:80]!r}); expected float")
    if not math.isfinite(result):
        raise TypeError(f"@{decorator}: {name} returned {result!r}; expected a finite float")
    return result


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling gives a coroutine: `async def`, or an object whose `__call__` is."""
    target = inspect.unwrap(function)
    while hasattr(target, "func") and not inspect.isfunction(target):
        target = target.func
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(
        inspect.getattr_static(type(target), "__call__", None)
    )
