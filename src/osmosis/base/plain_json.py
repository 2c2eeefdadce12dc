"""Whatever code leaves behind, as JSON that can be written and read again: whole text, plain values, a bounded depth.

Nothing is guessed and nothing raises: what has no JSON form becomes its text, what cannot even be that (a value that
contains itself, one nested too deeply) becomes a mark, and its place is reported. Formats and files are others' work.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import enum
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 100
"""Levels of nesting: below what the JSON libraries of this project take (254), with room for what goes around it."""
_ATOMS = frozenset({str, int, float, bool, type(None)})
_WORD = 2**63
_IMMUTABLE = (str, bytes, int, float, bool, type(None), datetime.datetime, datetime.date)


def whole_text(text: str) -> str:
    """`text` as UTF-8 can hold it: halves of surrogate pairs, which a cut-off model answer or an undecodable file name
    has, are put together or replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def plain(value: object, place: str = "", refused: list[str] | None = None) -> object:
    """A copy of `value` made of whole text, 64-bit numbers, lists and dicts with text keys.

    Each place that could not be kept is added to `refused` with the reason (`messages[3].content: it contains itself`)
    and holds a mark instead.
    """
    return _Plain([] if refused is None else refused).of(value, place, 0)


def own_copy(value: Any) -> Any:
    """A copy that shares nothing that can be changed with `value`; cheap for what JSON is made of."""
    if type(value) is dict:
        if _ATOMS.issuperset(map(type, value.values())):
            return value.copy()
        return {key: sub if type(sub) is str else own_copy(sub) for key, sub in value.items()}
    if type(value) is list:
        return [sub if type(sub) is str else own_copy(sub) for sub in value]
    return value if isinstance(value, _IMMUTABLE) else copy.deepcopy(value)


class _Plain:
    def __init__(self, refused: list[str]) -> None:
        self._refused = refused
        self._above: set[int] = set()
        """The containers that the value stands in, by identity."""

    def of(self, value: object, place: str, depth: int) -> object:
        if isinstance(value, enum.Enum):
            value = value.value
        if isinstance(value, str):
            return whole_text(str(value))
        if value is None or isinstance(value, (bool, float)):
            return value
        if isinstance(value, int):
            return int(value) if -_WORD <= value < _WORD else self._text(value, place)
        inside = _members(value)
        if inside is None:
            return self._text(value, place)
        if id(value) in self._above:
            return self._refuse(place, "it contains itself")
        if depth >= MAX_DEPTH:
            return self._refuse(place, f"it is nested more than {MAX_DEPTH} levels deep")
        self._above.add(id(value))
        try:
            if isinstance(inside, dict):
                named = ((self._key(key, place), sub) for key, sub in inside.items())
                return {
                    key: self.of(sub, _join(place, f".{key}" if place else key, depth), depth + 1) for key, sub in named
                }
            return [self.of(sub, _join(place, f"[{i}]", depth), depth + 1) for i, sub in enumerate(inside)]
        finally:
            self._above.discard(id(value))

    def _key(self, key: object, place: str) -> str:
        return whole_text(key) if isinstance(key, str) else str(self._text(key, place))

    def _text(self, value: object, place: str) -> str:
        try:
            if isinstance(value, (bytes, bytearray)):
                return bytes(value).decode("utf-8", "replace")
            if isinstance(value, (datetime.date, datetime.time)):
                return value.isoformat()
            return whole_text(str(value))
        except Exception as error:  # noqa: BLE001 - the value is user code, and so is its __str__
            return self._refuse(place, f"a {type(value).__name__} whose text cannot be read: {type(error).__name__}")

    def _refuse(self, place: str, why: str) -> str:
        self._refused.append(f"{place or 'the value'}: {why}")
        return f"[not JSON: {why}]"


def _members(value: object) -> dict[object, object] | list[object] | None:
    """What a container holds; None for what is none."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    fields = getattr(type(value), "model_fields", None)  # a record, or another library's model
    if isinstance(fields, dict):
        return {name: getattr(value, name, None) for name in fields}
    for method in ("tolist", "item"):  # arrays and their scalars; neither library is needed to know that
        unwrap = getattr(value, method, None)
        if callable(unwrap) and isinstance(found := unwrap(), list):
            return found
    return None


def _join(place: str, part: str, depth: int) -> str:
    """The place of a member; below the third level the place of what it is in says enough."""
    return place + part if depth < 3 else place
