"""Validation of hand-written tables: every broken rule is reported at once, with what to type instead.

Rules over several keys are checked although another key is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from osmosis.records.base import Record, Strict

if TYPE_CHECKING:
    from typing import LiteralString, Self


def broken_rule(
    what: str, fix: str, *, code: LiteralString = "bad-value", near: str | None = None
) -> PydanticCustomError:
    return PydanticCustomError(code, "{what}", {"what": what, "fix": fix, "near": near})


def at_key(error: PydanticCustomError, *key: str) -> InitErrorDetails:
    return InitErrorDetails(type=error, loc=key, input=None)


def broken_at(
    text: str, fix: str, *key: str, code: LiteralString = "bad-value", near: str | None = None
) -> InitErrorDetails:
    return at_key(broken_rule(text, fix, code=code, near=near), *key)


def iterate_errors(error: ValidationError) -> Iterator[InitErrorDetails]:
    for detail in error.errors(include_url=False):
        context = detail.get("ctx", {})
        kind = PydanticCustomError(detail["type"], "{what}", context) if "what" in context else detail["type"]
        yield InitErrorDetails(type=kind, loc=detail["loc"], input=detail["input"], ctx=context)


class Table(Strict):
    """A table of a config. Its rules over several keys see the raw input, so that no other mistake hides them."""

    @classmethod
    def across(cls, written: dict[str, object]) -> Iterator[InitErrorDetails]:
        return iter(())

    @model_validator(mode="wrap")
    @classmethod
    def _all_at_once(cls, data: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(data, dict):
            return handler(data)
        written = dict(data)
        errors = list(cls.across(written))
        try:
            table = handler(written)
        except ValidationError as error:
            errors += iterate_errors(error)
        if errors:
            raise ValidationError.from_exception_data(cls.__name__, errors)
        return table


Severity = Literal["error", "warning", "info"]


class Problem(Record):
    code: str
    """Stable word for scripts, e.g. `dirty-rollout`."""
    what: str
    """Lower-case, no full stop needed."""
    where: str = ""
    """`file:line: key`, a path, a ref or a command."""
    fix: str = ""
    """The next thing to type or change."""
    near: str | None = None
    """The name that was probably meant, when a name is unknown."""
    severity: Severity = "error"
    """Only errors stop a submit."""

    @classmethod
    def error(cls, code: str, text: str, where: str = "", fix: str = "") -> Problem:
        return cls(code=code, what=text, where=where, fix=fix)

    @classmethod
    def warning(cls, code: str, text: str, where: str = "", fix: str = "") -> Problem:
        return cls(code=code, what=text, where=where, fix=fix, severity="warning")

    @classmethod
    def info(cls, code: str, text: str, where: str = "", fix: str = "") -> Problem:
        return cls(code=code, what=text, where=where, fix=fix, severity="info")

    def line(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head} (fix: {self.fix})" if self.fix else head
