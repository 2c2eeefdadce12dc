"""Reading a judge's reply: its own verdict, and never one that it quotes.

A verdict is a JSON object with a score and an explanation. It counts below the marker that only this call's judge was
told, or where the whole reply is the object (as an endpoint held to a schema answers). An object inside prose, or one
that stands in the judged texts, is nobody's verdict: the reply is refused, never guessed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence

_THINK = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.S | re.I)
_THINK_END = re.compile(r"</think(?:ing)?>", re.I)
_FENCED = re.compile(r"\A```[a-z]*\s*(.*?)\s*```\Z", re.S | re.I)
_BEFORE = re.compile(r"\A[\s`*:]*(?:json)?\s*", re.I)
"""Markup between a marker and its object."""
_SPACE = re.compile(r"\s+")


class BadReply(ValueError):
    """The judge's reply holds no usable score; the text says why."""


def read_reply(text: str, marker: str, quoted: Sequence[str] = ()) -> tuple[float, str]:
    """(score, explanation) of the judge's own verdict; `BadReply` when there is none.

    `marker` is the line it was told to put before its verdict, `quoted` the texts it read. Thoughts in think tags and
    a code fence around the object are skipped.
    """
    spoken = _THINK_END.split(_THINK.sub(" ", text))[-1].strip()
    if not spoken:
        raise BadReply("the reply is empty")
    _, marked, own = spoken.rpartition(marker)
    if marked:
        return _verdict(_first_object(own))
    whole = _unfenced(spoken)
    try:
        verdict = json.loads(whole)
    except (ValueError, RecursionError) as exc:
        what = "no JSON object" if "{" not in spoken else "no verdict of its own: its JSON stands inside other text"
        raise BadReply(f"the reply holds {what}") from exc
    found = _verdict(verdict)
    bare = _SPACE.sub("", whole)
    if any(bare in _SPACE.sub("", one) for one in quoted):
        raise BadReply("the reply repeats JSON of the judged texts and gives no verdict of its own")
    return found


def _unfenced(text: str) -> str:
    fenced = _FENCED.match(text)
    return fenced[1] if fenced else text


def _first_object(text: str) -> object:
    """What follows the marker: the object that begins there, whatever comes after it."""
    try:
        return json.JSONDecoder().raw_decode(_BEFORE.sub("", text))[0]
    except (ValueError, RecursionError) as exc:
        raise BadReply("the reply has no JSON object below its marker") from exc


def _verdict(candidate: object) -> tuple[float, str]:
    if not isinstance(candidate, Mapping):
        raise BadReply("the reply holds no JSON object")
    score, explanation = candidate.get("score"), candidate.get("explanation")
    if isinstance(score, bool) or not isinstance(score, (int, float)):
        raise BadReply(f"the reply's score is {score!r}, not a number")
    try:
        value = float(score)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise BadReply("the reply's score is not a finite number")
    if not isinstance(explanation, str) or not explanation.strip():
        raise BadReply("the reply has no explanation")
    return value, explanation.strip()
