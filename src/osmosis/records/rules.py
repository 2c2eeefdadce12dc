"""Rules of tables that people write: every broken one is reported at once, as data that says what to type instead.

Rules of one key are pydantic's own, on the field. Here is what pydantic lacks: rules over several keys that are
checked although another key is wrong, and errors whose context names the fix. No words for the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from .base import Strict

if TYPE_CHECKING:
    from typing import LiteralString, Self


def broken(what: str, fix: str, *, code: LiteralString = "bad-value", near: str | None = None) -> PydanticCustomError:
    """A broken rule: its context says what is wrong, what to type instead, and which known name was probably meant."""
    return PydanticCustomError(code, "{what}", {"what": what, "fix": fix, "near": near})


def at(error: PydanticCustomError, *key: str) -> InitErrorDetails:
    """A broken rule, said of a key below the one under validation."""
    return InitErrorDetails(type=error, loc=key, input=None)


def said(error: ValidationError) -> Iterator[InitErrorDetails]:
    """The errors of one validation, to be raised again together with others."""
    for found in error.errors(include_url=False):
        context = found.get("ctx", {})
        kind = PydanticCustomError(found["type"], "{what}", context) if "what" in context else found["type"]
        yield InitErrorDetails(type=kind, loc=found["loc"], input=found["input"], ctx=context)


class Table(Strict):
    """A table of a config. Its rules over several keys see what was written, so that no other mistake hides them."""

    @classmethod
    def across(cls, written: dict[str, object]) -> Iterator[InitErrorDetails]:
        """What breaks a rule over several keys. Keys about which all is said then may be taken out of `written`."""
        return iter(())

    @model_validator(mode="wrap")
    @classmethod
    def _all_at_once(cls, data: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(data, dict):
            return handler(data)
        written = dict(data)
        found = list(cls.across(written))
        try:
            table = handler(written)
        except ValidationError as error:
            found += said(error)
        if found:
            raise ValidationError.from_exception_data(cls.__name__, found)
        return table
