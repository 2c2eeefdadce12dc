import math
from collections.abc import Mapping

from pydantic import ValidationError as PydanticError

from osmosis.errors import ValidationError
from osmosis.records.run.annotations import LONGEST_COMMENT, LONGEST_LABEL, TAG_RULE, Annotation, MarkChange, unique
from osmosis.records.run.rollout import Rollout
from osmosis.viewer.index.search import parse_query
from osmosis.viewer.page import QueryParams
from osmosis.viewer.run_source import RunSource


def parse_annotation(form: Mapping[str, str], rollout: Rollout, author: str) -> Annotation:
    label, comment = form.get("label", "").strip(), form.get("comment", "").strip()
    if len(label) > LONGEST_LABEL:
        raise ValidationError(f"label: at most {LONGEST_LABEL} characters", field="label")
    if len(comment) > LONGEST_COMMENT:
        raise ValidationError(f"comment: at most {LONGEST_COMMENT} characters", field="comment")
    place = rollout.model_dump(include={"step", "row_index", "attempt", "row_key", "rollout_id"})
    score = _parse_score(form.get("score", "").strip())
    return Annotation(**place, label=label, score=score, comment=comment, author=author)


def _parse_score(text: str) -> float | None:
    if not text:
        return None
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise ValidationError(f"score: {text[:40]!r} is not a number", field="score", hint="for example 0.5")
    return score


def next_url(source: RunSource, rollout: Rollout, params: QueryParams) -> str:
    url = f"{source.state().url}/rollouts"
    if params.text("then") == "next":
        query = parse_query(params)
        near = source.table().search.neighbours(rollout.row_index, rollout.attempt, rollout.step, query)
        if near.after is not None:
            row_index, attempt, step = near.after
            return f"{url}/{row_index}/{attempt}{params.link(then=None, step=step or None)}".rstrip("?")
    return f"{url}/{rollout.row_index}/{rollout.attempt}{params.link(then=None)}".rstrip("?") + "#judgement"


def parse_marks(form: Mapping[str, str]) -> MarkChange:
    values = {
        "name": form.get("name", "").strip() or None,
        "tags": unique(form.get("tags", "").replace(",", " ").split()),
        "note": form.get("note", "").replace("\r\n", "\n"),
        "pinned": form.get("pinned") == "true",
    }
    try:
        return MarkChange.model_validate(values)
    except PydanticError as error:
        first = error.errors()[0]
        field, message = str(first["loc"][0]), str(first["msg"]).removeprefix("Value error, ")
        raise ValidationError(f"{field}: {message}", field=field, hint=f"a tag: {TAG_RULE}") from None
