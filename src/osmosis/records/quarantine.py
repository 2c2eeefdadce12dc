"""Rows that are known to be flaky: each with the reason and a last day. They are shown like others and decide nothing.

An entry is for a time: after its last day the row counts again, whoever forgot it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import date

from pydantic import Field
from pydantic import ValidationError as PydanticError

from osmosis.base.light_dataclass import dataclass
from osmosis.errors import ValidationError

from .base import Strict, utc_now

NAME = "quarantine.toml"
"""Of the file, in the top folder of a workspace."""


class QuarantinedRow(Strict):
    """One row that does not decide."""

    key: str = Field(min_length=1, max_length=300)
    """The row's `id`, or its key where the dataset has none."""
    reason: str = Field(min_length=1, max_length=500)
    until: date
    """The last day, in UTC."""
    dataset: str = ""
    """Name of the only dataset that is meant; empty: any."""

    def expired(self, today: date | None = None) -> bool:
        return (today or utc_now().date()) > self.until

    @property
    def line(self) -> str:
        if self.expired():
            return f"row {self.key} was in quarantine until {self.until}, and counts again: {self.reason}"
        return f"row {self.key} is in quarantine until {self.until}: {self.reason}"


class RowQuarantine(Strict):
    """All of a workspace, as `quarantine.toml` has them."""

    row: list[QuarantinedRow] = Field(default_factory=list)

    def of(self, datasets: Iterable[str]) -> RowQuarantine:
        """Those that mean rows of these datasets."""
        names = {"", *datasets}
        return RowQuarantine.made(row=[one for one in self.row if one.dataset in names])

    def about(self, key: str) -> list[QuarantinedRow]:
        """What is said about one row."""
        return [one for one in self.row if one.key == key]

    def sorted_out(self, keys: Iterable[str]) -> SortedOut:
        """What it means for a run with rows of these keys."""
        there = set(keys)
        found = [one for one in self.row if one.key in there]
        held = [one for one in found if not one.expired()]
        aside = {one.key for one in held}
        return SortedOut(held, [one for one in found if one.expired() and one.key not in aside])

    @property
    def held(self) -> set[str]:
        """Keys of the rows that do not decide today."""
        return {one.key for one in self.row if not one.expired()}


def quarantine_of(text: str, where: str = NAME) -> RowQuarantine:
    """What a file with this text holds. Raises ValidationError with all that is wrong."""
    # Every evaluation asks for the file, and most workspaces have none.
    if sys.version_info >= (3, 11):
        import tomllib
    else:  # pragma: no cover - the same parser under its older name
        import tomli as tomllib

    try:
        return RowQuarantine.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ValidationError(f"{where}: {error}") from error
    except PydanticError as error:
        said = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        hint = f"each [[row]] has {', '.join(QuarantinedRow.model_fields)}"
        raise ValidationError(f"{where}: {'; '.join(said)}", hint=hint) from error


@dataclass(frozen=True, slots=True)
class SortedOut:
    """The entries that some run meets."""

    held: Sequence[QuarantinedRow]
    """Their rows do not decide."""
    expired: Sequence[QuarantinedRow]
    """Their rows count again."""

    @property
    def keys(self) -> set[str]:
        return {one.key for one in self.held}

    @property
    def lines(self) -> list[str]:
        """Each as a sentence."""
        return [one.line for one in (*self.held, *self.expired)]
