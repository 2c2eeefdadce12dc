import ast
import inspect
from collections.abc import Iterator
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import TypeVar, get_args

from pydantic import BaseModel, ConfigDict

from osmosis.base.jsonable import JsonObject


class Record(BaseModel):
    """A typed value that moves between layers. Unknown keys are ignored, so that older readers accept newer writers;
    numbers are finite."""

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
        for inner in _records_in(field.annotation):
            _describe(inner, visited)
        field.description = field.description or texts.get(name)
    model.model_rebuild(force=True)


def _records_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _records_in(part)


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
