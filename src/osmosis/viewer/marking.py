"""What a person types into the form of a run's marks, as the change that it asks for."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError as PydanticError

from osmosis.errors import ValidationError
from osmosis.records.marks import TAG_RULE, MarkChange, unique


def change_of(form: Mapping[str, str]) -> MarkChange:
    """From `name`, `tags` (parted by commas or spaces), `note` and `pinned`. ValidationError names what is wrong."""
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
        what = str(first["msg"]).removeprefix("Value error, ")
        raise ValidationError(
            f"{first['loc'][0]}: {what}", field=str(first["loc"][0]), hint=f"a tag: {TAG_RULE}"
        ) from None
