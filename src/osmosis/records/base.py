"""The base of every record: typed, refuses non-finite numbers, says nothing about storage or transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from functools import cache

from pydantic import BaseModel, ConfigDict
from typing_extensions import Self

from osmosis.base.json_types import JsonObject
from osmosis.base.pydantic_plugins import without_plugins


class Record(BaseModel):
    """A typed value that moves between layers. Unknown keys are ignored, so older readers meet newer writers."""

    # Deferred: a command builds the schemas of the records it uses, not of all that its imports bring along.
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, defer_build=True, protected_namespaces=())

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        for field in cls.__pydantic_fields__.values():
            if field.default_factory is list:
                field.default_factory = _new_list

    @classmethod
    def model_rebuild(
        cls,
        *,
        force: bool = False,
        raise_errors: bool = True,
        _parent_namespace_depth: int = 2,
        _types_namespace: Mapping[str, object] | None = None,
    ) -> bool | None:
        """Builds the schema, at start without pydantic's plugins."""
        with without_plugins():
            return super().model_rebuild(
                force=force,
                raise_errors=raise_errors,
                _parent_namespace_depth=_parent_namespace_depth + 1 if _parent_namespace_depth > 0 else 0,
                _types_namespace=_types_namespace,
            )

    @classmethod
    def made(cls, **values: object) -> Self:
        """A record of values that are right already: nothing is checked; what is left out gets its default.

        For the few records of which every rollout has some: it costs half of what the constructor does.
        """
        template, factories = _template(cls)
        fields = values
        if len(values) < len(template):
            fields = {**template, **values}
            for name, factory in factories:
                if name not in values:
                    fields[name] = factory()
        record: Self = _new(cls)
        _set_fields(record, fields)
        _set_fields_set(record, set(values))
        _set_extra(record, None)
        _set_private(record, None)
        return record

    @classmethod
    def whole(cls, fields: dict[str, object]) -> Self:
        """A record of all its fields, which are right already: nothing is checked or copied, it keeps this very dict.

        For what every rollout has one of: a third of what `made` costs.
        """
        record: Self = _new(cls)
        _set_fields(record, fields)
        _set_fields_set(record, _all_fields(cls))
        _set_extra(record, None)
        _set_private(record, None)
        return record

    def put(self, **values: object) -> None:
        """Sets fields to values that are right already: nothing is checked, as with `made`."""
        self.__dict__.update(values)

    def to_dict(self) -> JsonObject:
        """JSON-safe dict; keys with no value are left out."""
        return self.model_dump(mode="json", exclude_none=True)

    def to_line(self) -> bytes:
        """One JSON line (with the newline), as a journal stores it."""
        return self.model_dump_json(exclude_none=True).encode() + b"\n"


def _new_list() -> list[object]:
    """For `list`, whose signature pydantic asks for: Python reads that of a built-in out of a text, with a parser."""
    return []


_new = object.__new__
# The four slots of a pydantic model, set directly: by their names it takes three times as long.
_set_fields, _set_fields_set, _set_extra, _set_private = (
    vars(BaseModel)[slot].__set__
    for slot in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)


@cache
def _all_fields(kind: type[Record]) -> set[str]:
    """One set for all whole records: pydantic only ever adds names of fields to it."""
    return set(kind.model_fields)


@cache
def _template(kind: type[Record]) -> tuple[dict[str, object], tuple[tuple[str, Callable[[], object]], ...]]:
    """The fields in their order with their defaults, and what makes the defaults that are not to be shared."""
    fields = kind.model_fields
    plain = {name: None if field.is_required() else field.default for name, field in fields.items()}
    made = {name: field.default_factory for name, field in fields.items() if field.default_factory is not None}
    return plain, tuple(made.items())  # type: ignore[arg-type]  # none of ours takes the validated data


class Strict(Record):
    """A record people write by hand: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


def utc_now() -> datetime:
    """The current time, aware, in UTC: every stored time is made here."""
    return datetime.now(timezone.utc)
