import copy
import dataclasses
import datetime
import enum
import json
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from numbers import Real
from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]


MAX_DEPTH = 100  # Levels of nesting; JSON libraries accept 254, and other data surrounds this
_WORD = 2**63
_IMMUTABLE = (str, bytes, int, float, bool, type(None), datetime.datetime, datetime.date)


def to_valid_text(text: str) -> str:
    """Return valid Unicode: join or replace surrogates, as in cut-off model answers and undecodable file names."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def iterate_leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield what nested tables hold, each with its path (`table.key`); a list is one value."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from iterate_leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def parse_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def without_none(values: Mapping[str, object]) -> JsonObject:
    return {name: value for name, value in values.items() if value is not None}


def objects_in(value: object) -> list[JsonObject]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def copy_as_json(value: object, place: str = "", refused: list[str] | None = None) -> object:
    """Copy `value` as valid text, 64-bit numbers, lists and dicts with text keys. A mark stands for what could not be
    kept; its place and the reason are added to `refused` (`messages[3].content: it contains itself`)."""
    return _Plain([] if refused is None else refused).of(value, place, 0)


def copy_json(value: Any) -> Any:
    if type(value) is dict:
        if {str, int, float, bool, type(None)}.issuperset(map(type, value.values())):
            return value.copy()
        return {key: sub if type(sub) is str else copy_json(sub) for key, sub in value.items()}
    if type(value) is list:
        return [sub if type(sub) is str else copy_json(sub) for sub in value]
    return value if isinstance(value, _IMMUTABLE) else copy.deepcopy(value)


class _Plain:
    def __init__(self, refused: list[str]) -> None:
        self._refused = refused
        self._above: set[int] = set()

    def of(self, value: object, path: str, depth: int) -> object:
        if isinstance(value, enum.Enum):
            value = value.value
        if isinstance(value, str):
            return to_valid_text(str(value))
        if value is None or isinstance(value, (bool, float)):
            return value
        if isinstance(value, int):
            return int(value) if -_WORD <= value < _WORD else self._text(value, path)
        inside = _members(value)
        if inside is None:
            return self._text(value, path)
        if id(value) in self._above:
            return self._refuse(path, "it contains itself")
        if depth >= MAX_DEPTH:
            return self._refuse(path, f"it is nested more than {MAX_DEPTH} levels deep")
        self._above.add(id(value))
        try:
            if isinstance(inside, dict):
                named = (
                    (to_valid_text(key if isinstance(key, str) else str(self._text(key, path))), sub)
                    for key, sub in inside.items()
                )
                return {
                    key: self.of(sub, _join(path, f".{key}" if path else key, depth), depth + 1) for key, sub in named
                }
            return [self.of(sub, _join(path, f"[{i}]", depth), depth + 1) for i, sub in enumerate(inside)]
        finally:
            self._above.discard(id(value))

    def _text(self, value: object, path: str) -> str:
        try:
            if isinstance(value, (bytes, bytearray)):
                return bytes(value).decode("utf-8", "replace")
            if isinstance(value, (datetime.date, datetime.time)):
                return value.isoformat()
            return to_valid_text(str(value))
        except Exception as error:  # noqa: BLE001 - the value is user code, and so is its __str__
            return self._refuse(path, f"a {type(value).__name__} whose text cannot be read: {type(error).__name__}")

    def _refuse(self, path: str, reason: str) -> str:
        self._refused.append(f"{path or 'the value'}: {reason}")
        return f"[not JSON: {reason}]"


def _members(value: object) -> dict[object, object] | list[object] | None:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    fields = getattr(type(value), "model_fields", None)  # a record, or another library's model
    if isinstance(fields, dict):
        return {name: getattr(value, name, None) for name in fields}
    for method in ("tolist", "item"):  # arrays and their scalars; neither library is needed to know that
        unwrap = getattr(value, method, None)
        if callable(unwrap) and isinstance(members := unwrap(), list):
            return members
    return None


def _join(path: str, part: str, depth: int) -> str:
    return path + part if depth < 3 else path


def as_float(number: object) -> float:
    """Convert a number of any library to a finite float. The text of ValueError follows "returned" or "is"."""
    if type(number) is not float and not isinstance(number, (Real, Decimal)):
        number = _unwrapped(number)
    try:
        value = float(number)
    except OverflowError:
        raise ValueError("a whole number too large for a float") from None
    if not math.isfinite(value):
        raise ValueError(f"{value}, which is not a finite number")
    return value


def describe(value: object) -> str:
    kind = type(value).__name__
    if isinstance(value, (int, float)):
        return f"{kind} {value!r}"
    return f"{kind} of {len(value)} characters" if isinstance(value, str) else kind


def _unwrapped(scalar: object) -> Real | Decimal:
    unwrap = getattr(scalar, "item", None) or getattr(scalar, "numpy", None)
    if callable(unwrap) and _size(scalar) == 1:
        inner: object = unwrap()
        inner = inner.item() if hasattr(inner, "item") else inner
        if isinstance(inner, (Real, Decimal)):
            return inner
    raise ValueError(f"{type(scalar).__name__} instead of a number")


def _size(scalar: object) -> object:
    count = getattr(scalar, "numel", None)
    if callable(count):
        return count()
    size = getattr(scalar, "size", 1)
    return 1 if callable(size) else size
