"""Quarantine: rows that are known to be flaky, with a reason and a last day. They are shown and decide nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date

from pydantic import Field, ValidationError as PydanticError

from osmosis.base.files import tomllib
from osmosis.errors import ValidationError
from osmosis.records.base import Strict, utc_now

NAME = "quarantine.toml"


class QuarantinedRow(Strict):
    key: str = Field(min_length=1, max_length=300)
    """The row's `id`, or its key where the dataset has none."""
    reason: str = Field(min_length=1, max_length=500)
    until: date
    """The last day, in UTC."""
    dataset: str = ""
    """Only dataset it applies to; empty: any."""

    def expired(self, today: date | None = None) -> bool:
        return (today or utc_now().date()) > self.until

    @property
    def line(self) -> str:
        if self.expired():
            return f"row {self.key} was in quarantine until {self.until}, and counts again: {self.reason}"
        return f"row {self.key} is in quarantine until {self.until}: {self.reason}"


class RowQuarantine(Strict):
    """The content of `quarantine.toml`."""

    row: list[QuarantinedRow] = Field(default_factory=list)

    def of(self, datasets: Iterable[str]) -> "RowQuarantine":
        return RowQuarantine(row=[entry for entry in self.row if entry.dataset in {"", *datasets}])

    def about(self, key: str) -> list[QuarantinedRow]:
        return [entry for entry in self.row if entry.key == key]

    def sorted_out(self, keys: Iterable[str]) -> "SortedOut":
        present = set(keys)
        entries = [entry for entry in self.row if entry.key in present]
        active = [entry for entry in entries if not entry.expired()]
        excluded = {entry.key for entry in active}
        return SortedOut(active, [entry for entry in entries if entry.expired() and entry.key not in excluded])

    @property
    def held(self) -> set[str]:
        return {entry.key for entry in self.row if not entry.expired()}


def parse_quarantine(text: str, where: str = NAME) -> RowQuarantine:
    try:
        return RowQuarantine.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ValidationError(f"{where}: {error}") from error
    except PydanticError as error:
        problems = [f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors()]
        hint = f"each [[row]] has {', '.join(QuarantinedRow.model_fields)}"
        raise ValidationError(f"{where}: {'; '.join(problems)}", hint=hint) from error


@dataclass(frozen=True, slots=True)
class SortedOut:
    held: Sequence[QuarantinedRow]
    expired: Sequence[QuarantinedRow]

    @property
    def keys(self) -> set[str]:
        return {entry.key for entry in self.held}

    @property
    def lines(self) -> list[str]:
        return [entry.line for entry in (*self.held, *self.expired)]
