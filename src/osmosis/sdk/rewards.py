import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from osmosis.base.jsonable import JsonObject, describe
from osmosis.sdk.user_code import is_async

F = TypeVar("F", bound=Callable[..., Any])

_NAME = "osmosis_reward"
_FORM = "(solution_str: str, ground_truth: str, extra_info: dict = None) -> float"
_EMPTY = inspect.Parameter.empty


def osmosis_reward(function: F) -> F:
    """Check that `function` is `(solution_str: str, ground_truth: str, extra_info: dict = None) -> float`.

    Further parameters with defaults and `**kwargs` are fine, so is `async def`. At call time the keyword
    `data_source` is dropped and the result must be a finite float. Every rejection is a `TypeError`."""
    signature = Signature(function, _NAME)
    solution, truth, info = signature.first_three(_FORM)
    for parameter, expected in ((solution, str), (truth, str), (info, dict)):
        annotation = signature.annotation(parameter)
        if annotation is not expected:
            signature.refuse(f"parameter {parameter.name!r}", annotated(annotation), expected.__name__)
    if info.default is info.empty:
        signature.refuse("parameter 'extra_info'", "has no default", "extra_info: dict = None")
    signature.check_returns()
    return check_calls(function, signature.name, _NAME, _any_call)


Prepare = Callable[[tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]


def check_calls(function: F, name: str, decorator: str, prepare: Prepare) -> F:
    wrapper: Callable[..., object]
    if is_async(function):

        @functools.wraps(function)
        async def asynchronous(*args: object, **kwargs: object) -> float:
            positional, named = prepare(args, kwargs)
            return check_result(await function(*positional, **named), name, decorator)

        wrapper = asynchronous
    else:

        @functools.wraps(function)
        def plain(*args: object, **kwargs: object) -> float:
            positional, named = prepare(args, kwargs)
            return check_result(function(*positional, **named), name, decorator)

        wrapper = plain
    wrapper.__osmosis_kind__ = decorator.removeprefix("osmosis_")  # type: ignore[union-attr]  # functions take attributes
    return wrapper  # type: ignore[return-value]  # of the function's own type


def _any_call(args: tuple[object, ...], kwargs: JsonObject) -> tuple[tuple[Any, ...], JsonObject]:
    kwargs.pop("data_source", None)
    return args, kwargs


class Signature:
    def __init__(self, function: Callable[..., object], decorator: str) -> None:
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

    def refuse(self, subject: str, actual: str, expected: str) -> NoReturn:
        raise TypeError(f"@{self.decorator}: {self.name}: {subject} {actual}; expected {expected}")

    def first_three(self, form: str) -> tuple[inspect.Parameter, inspect.Parameter, inspect.Parameter]:
        names = ("solution_str", "ground_truth", "extra_info")
        for position, (name, ordinal) in enumerate(zip(names, ("first", "second", "third"), strict=True)):
            parameter = self.parameters[position] if position < len(self.parameters) else None
            if parameter is None or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                count = sum(p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in self.parameters)
                self.refuse(f"the {ordinal} parameter {name!r}", f"is missing (found {count})", form)
            if parameter.name != name:
                self.refuse(f"the {ordinal} parameter", f"is named {parameter.name!r}", f"{name!r}, as in {form}")
            if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
                self.refuse(
                    f"parameter {name!r}",
                    f"is {parameter.kind.description}",
                    "one that can be passed by position or by name",
                )
        for extra in self.parameters[3:]:
            if extra.kind not in (extra.VAR_KEYWORD, extra.VAR_POSITIONAL) and extra.default is _EMPTY:
                self.refuse(f"parameter {extra.name!r}", "has no default", "a default on every further parameter")
        return self.parameters[0], self.parameters[1], self.parameters[2]

    def annotation(self, parameter: inspect.Parameter) -> object:
        return self._resolved(parameter.annotation)

    def check_returns(self) -> None:
        annotation = self._resolved(self._signature.return_annotation)
        if annotation is None or (
            inspect.isclass(annotation) and annotation is not _EMPTY and not issubclass(annotation, float)
        ):
            self.refuse("the return annotation", f"is {spell(annotation)}", "float")

    def _resolved(self, annotation: object) -> object:
        scope = getattr(inspect.unwrap(self.function), "__globals__", {})
        # A quoted annotation in a module with postponed annotations is a string within a string.
        for _ in range(2):
            if not isinstance(annotation, str):
                break
            try:
                # One by one, so that another parameter's name that exists only for type checkers hides nothing.
                annotation = eval(annotation, scope)
            except Exception:  # noqa: BLE001 - annotations can be any expression; show its text
                break
        return annotation


def annotated(annotation: object) -> str:
    return "has no annotation" if annotation is _EMPTY else f"is annotated {spell(annotation)}"


def spell(annotation: object) -> str:
    if inspect.isclass(annotation) and not hasattr(annotation, "__args__"):
        return annotation.__name__
    return annotation if isinstance(annotation, str) else str(annotation).replace("typing.", "")


def check_result(result: object, name: str, decorator: str) -> float:
    if not isinstance(result, float) or not math.isfinite(result):
        raise TypeError(f"@{decorator}: {name} returned {describe(result)}; expected a finite float")
    return result
