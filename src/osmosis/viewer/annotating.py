"""What a person types beside a rollout, as an annotation; and how it is shown there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from osmosis.errors import ValidationError
from osmosis.records.annotation import LONGEST_COMMENT, LONGEST_LABEL, Annotation
from osmosis.records.rollout import Rollout

from .asked import Asked
from .index.query import query_of
from .source import RunSource


@dataclass(frozen=True, slots=True)
class Judgement:
    """The part of a rollout's page that is about what people said."""

    said: Sequence[Annotation]
    own: Annotation | None
    """What the person who looks said before."""
    url: str
    """Where the form goes; empty where nothing can be said."""


def judgement(said: Sequence[Annotation], record: Rollout, author: str | None, url: str) -> Judgement:
    here = [one for one in said if one.place == (record.step, *record.place)]
    return Judgement(here, next((one for one in here if one.author == author), None), url if author else "")


def after(source: RunSource, record: Rollout, asked: Asked) -> str:
    """Where one goes on: the next rollout of the filter that one came with when that was asked for, else the same."""
    tail = asked.link(then=None)
    query = "" if tail == "?" else tail
    url = source.state().url
    if asked.text("then") == "next":
        near = source.table().search.neighbours(record.row_index, record.attempt, record.step, query_of(asked))
        if near.after is not None:
            row_index, attempt, step = near.after
            wanted = Asked([*((name, value) for name, value in asked.pairs if name not in ("then", "step"))])
            more = wanted.link(step=step if step else None)
            return f"{url}/rollouts/{row_index}/{attempt}{'' if more == '?' else more}"
    return f"{url}/rollouts/{record.row_index}/{record.attempt}{query}#judgement"


def annotation_of(form: Mapping[str, str], record: Rollout, author: str) -> Annotation:
    """From the fields `label`, `score` and `comment`. ValidationError names the field that is wrong."""
    label, comment = form.get("label", "").strip(), form.get("comment", "").strip()
    if len(label) > LONGEST_LABEL:
        raise ValidationError(f"label: at most {LONGEST_LABEL} characters", field="label")
    if len(comment) > LONGEST_COMMENT:
        raise ValidationError(f"comment: at most {LONGEST_COMMENT} characters", field="comment")
    return Annotation(
        step=record.step,
        row_index=record.row_index,
        attempt=record.attempt,
        row_key=record.row_key,
        rollout_id=record.rollout_id,
        label=label,
        score=_score(form.get("score", "").strip()),
        comment=comment,
        author=author,
    )


def _score(text: str) -> float | None:
    if not text:
        return None
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ValidationError(f"score: {text[:40]!r} is not a number", field="score", hint="for example 0.5")
    return found
