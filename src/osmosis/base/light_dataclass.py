"""`dataclass` that is quick to make: the one of the standard library compiles up to six methods for each class, a tenth
of what starting an evaluation cost. Here only `__init__` is compiled; the others are the same for all classes.

They mean what the standard ones mean. Not for classes that users may inherit from while frozen: to the standard
library these are not frozen, although no field of theirs can be set twice.
"""

from __future__ import annotations

import dataclasses
from reprlib import recursive_repr
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, repr=True, **more):
        """As `dataclasses.dataclass`; `order` and `unsafe_hash` are left to that one."""

        def made(cls):
            own = vars(cls).keys()
            done = dataclasses.dataclass(cls, repr=False, eq=False, **more)
            if repr and "__repr__" not in own:
                done.__repr__ = _repr
            if eq and "__eq__" not in own:
                done.__eq__ = _eq
                if "__hash__" not in own:
                    done.__hash__ = _hash if frozen else None
            if frozen:
                done.__setattr__, done.__delattr__ = _set_once, _never_deleted
            return done

        return made if cls is None else made(cls)


def _fields(value: object) -> tuple[dataclasses.Field[object], ...]:
    return dataclasses.fields(value)  # type: ignore[arg-type]  # always a dataclass: the methods below are set on those


@recursive_repr("...")
def _repr(self: object) -> str:
    shown = [f"{one.name}={getattr(self, one.name)!r}" for one in _fields(self) if one.repr]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _compared(value: object) -> tuple[object, ...]:
    return tuple([getattr(value, one.name) for one in _fields(value) if one.compare])


def _eq(self: object, other: object) -> object:
    return _compared(self) == _compared(other) if type(other) is type(self) else NotImplemented


def _hash(self: object) -> int:
    return hash(
        tuple([getattr(self, one.name) for one in _fields(self) if (one.compare if one.hash is None else one.hash)])
    )


def _set_once(self: object, name: str, value: object) -> None:
    if name not in type(self).__dataclass_fields__ or _has(self, name):  # type: ignore[attr-defined]  # the same
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _never_deleted(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _has(value: object, name: str) -> bool:
    """Whether the instance itself has it: a default may stand at its class."""
    if hasattr(value, "__dict__"):
        return name in vars(value) or (name in _slots(type(value)) and hasattr(value, name))
    return hasattr(value, name)


def _slots(kind: type) -> set[str]:
    return {name for base in kind.__mro__ for name in vars(base).get("__slots__", ())}
