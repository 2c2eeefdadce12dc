"""A light dataclass does what the standard one does."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from osmosis.base.light_dataclass import dataclass as light


def made(decorator: Callable[..., Any], **how: bool) -> Any:
    class Place:
        row: int
        names: list[str] = dataclasses.field(default_factory=list, hash=False)
        secret: str = dataclasses.field(default="s", repr=False)
        seen: int = dataclasses.field(default=0, compare=False)

    return decorator(**how)(Place)


@pytest.mark.parametrize("slots", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_it_is_equal_shown_hashed_and_frozen_as_the_standard_one(slots: bool, frozen: bool) -> None:
    def told(kind: Any) -> list[object]:
        one, same, other = kind(1, ["a"]), kind(1, ["a"], seen=5), kind(2)
        found = [repr(one), one == same, one == other, one == (1, ["a"]), repr(dataclasses.replace(one, row=7))]
        found += [repr(copy.deepcopy(one)), dataclasses.asdict(one), kind.__match_args__, hasattr(one, "__dict__")]
        for change in (lambda: hash(one) == hash(same), lambda: setattr(one, "row", 3), lambda: delattr(one, "row")):
            try:
                found.append(change())
            except (TypeError, AttributeError) as error:
                found.append((type(error), str(error).replace("Light", "")))
        return [*found, one.row if frozen else None]

    assert told(made(light, slots=slots, frozen=frozen)) == told(
        made(dataclasses.dataclass, slots=slots, frozen=frozen)
    )


@light(frozen=True, slots=True)
class Kept:
    row: int
    name: str = "n"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kept) and other.row == self.row

    def __hash__(self) -> int:
        return self.row


def test_what_a_class_defines_itself_stays_and_it_can_be_pickled() -> None:
    found = pickle.loads(pickle.dumps(Kept(3)))
    assert (found, hash(found), found.name) == (Kept(3, "other"), 3, "n")
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.row = 4
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.more = 4
