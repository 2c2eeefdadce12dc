"""The JSON of request bodies: read strictly, so that whatever a route is given can be stored and sent again.

Refuses halves of characters, whole numbers beyond 64 bits and deep nesting, with the reason; NaN and infinity are left
to the records, which name the key. Answers are written so that whatever was stored can still be shown.
"""

from __future__ import annotations

import json
import math
import re

import orjson
from fastapi import Request
from fastapi.responses import JSONResponse

MAX_DEPTH = 200
"""Levels of nesting. The writers of JSON end at 254, and what is stored is put into a few more."""
_HALF = re.compile("[\ud800-\udfff]")


class StrictRequest(Request):
    """A request whose body is JSON that can be stored; `json()` raises `json.JSONDecodeError` otherwise."""

    async def json(self) -> object:
        if not hasattr(self, "_json"):
            self._json: object = read_json(await self.body())
        return self._json


class LenientResponse(JSONResponse):
    """An answer that leaves whatever was stored: what JSON cannot hold is replaced."""

    def render(self, content: object) -> bytes:
        try:
            text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        except ValueError:
            text = json.dumps(_finite(content), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")


def read_json(raw: bytes) -> object:
    """The value. `json.JSONDecodeError` says why it is refused."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:  # the standard library says more clearly what is wrong, or reads it
        try:
            value = json.loads(raw)
        except (UnicodeDecodeError, RecursionError) as error:
            raise json.JSONDecodeError(f"{type(error).__name__}: {str(error)[:200]}", "", 0) from None
    if problem := unstorable(value):
        raise json.JSONDecodeError(problem, "", 0)
    return value


def unstorable(value: object) -> str:
    """Why a JSON value is refused; empty when it is not."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        inner: list[object] = []
        for one in level:
            if isinstance(one, dict):
                inner += one
                inner += one.values()
            elif isinstance(one, list):
                inner += one
            elif isinstance(one, str):
                if not one.isascii() and _HALF.search(one):
                    return "text holds half a character (a lone surrogate)"
            elif isinstance(one, int) and not -(2**63) <= one < 2**63:
                return "a whole number does not fit 64 bits"
        if not inner:
            return ""
        level = inner
    return f"it is nested more than {MAX_DEPTH} levels deep"


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return value
