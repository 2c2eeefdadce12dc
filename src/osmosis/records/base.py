"""Base classes of records and of hand-written tables, whose broken rules are all reported at once, with what to type
instead; rules over several keys are checked although another key is wrong."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from osmosis.base.jsonable import JsonObject

if TYPE_CHECKING:
    from typing import LiteralString, Self


class Record(BaseModel):
    """A typed value that moves between layers. Unknown keys are ignored: older readers accept newer writers."""

    # Deferred: a command builds the schemas of the records it uses, not of all that its imports bring along.
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, defer_build=True, protected_namespaces=())

    def to_dict(self) -> JsonObject:
        return self.model_dump(mode="json", exclude_none=True)

    def to_line(self) -> bytes:
        return self.model_dump_json(exclude_none=True).encode() + b"\n"


class Strict(Record):
    """A record written by hand: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


Model = TypeVar("Model", bound=BaseModel)


def describe_fields(model: type[Model]) -> type[Model]:
    """Give the fields of a record, and of the records in it, their docstrings as descriptions; return the class."""
    _describe(model, set())
    return model


def _describe(model: type[BaseModel], visited: set[type[BaseModel]]) -> None:
    if model in visited:
        return
    visited.add(model)
    texts: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if kind is not BaseModel and issubclass(kind, BaseModel):
            texts |= _module_docstrings(inspect.getfile(kind)).get(kind.__name__, {})
    for name, field in model.model_fields.items():
        for inner in records_in(field.annotation):
            _describe(inner, visited)
        field.description = field.description or texts.get(name)
    model.model_rebuild(force=True)


def records_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from records_in(part)


@cache
def _module_docstrings(path: str) -> dict[str, dict[str, str]]:
    docstrings: dict[str, dict[str, str]] = {}
    for node in ast.parse(Path(path).read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ClassDef):
            continue
        texts = docstrings[node.name] = {}
        for line, after in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(line, ast.AnnAssign)
                and isinstance(line.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            ):
                texts[line.target.id] = inspect.cleandoc(after.value.value)
    return docstrings


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
