"""A command's flags as one record: each is a field that carries its typer option, and the command takes the record.

So a flag is written once: its name, type, default and help stand together, and whoever handles it reads a field.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import TypeVar, get_type_hints

F = TypeVar("F")
R = TypeVar("R")


def takes(record: type[F]) -> Callable[[Callable[[F], R]], Callable[..., R]]:
    """Makes a command of `body(flags)`: typer sees a parameter for each field of the dataclass `record`.

    A field is annotated with its type and `typer.Option` or `typer.Argument`. An option that is not given has the
    field's default.
    """
    hints = get_type_hints(record, include_extras=True)
    parameters = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=_default(field), annotation=hints[field.name]
        )
        for field in dataclasses.fields(record)  # type: ignore[arg-type]  # a dataclass's type
    ]

    def command_of(body: Callable[[F], R]) -> Callable[..., R]:
        @functools.wraps(body)
        def command(**given: object) -> R:
            return body(record(**{name: value for name, value in given.items() if value is not None}))

        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by typer
        command.__annotations__ = {}
        return command

    return command_of


def _default(field: dataclasses.Field[object]) -> object:
    if field.default is not dataclasses.MISSING:
        return field.default
    return None if field.default_factory is not dataclasses.MISSING else inspect.Parameter.empty
