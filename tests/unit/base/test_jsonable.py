"""Plain values of whatever there is, with the places of what cannot be kept."""

import datetime
from dataclasses import dataclass
from enum import Enum

import orjson
import pytest

from osmosis.base.jsonable import MAX_DEPTH, copy_as_json, copy_json, to_valid_text


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    tags: set[str]


class Unreadable:
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("\ud83d\ude00", "😀"),
        ("a\udce9", "a�"),
        (2**63, str(2**63)),
        ((1, True, None), [1, True, None]),
        ({1: {2: b"\xff"}}, {"1": {"2": "�"}}),
        (Colour.RED, "red"),
        (Point(1, {"a"}), {"x": 1, "tags": ["a"]}),
        (datetime.date(2026, 1, 2), "2026-01-02"),
    ],
)
def test_values(value: object, expected: object) -> None:
    refused: list[str] = []
    assert copy_as_json(value, "here", refused) == expected
    assert refused == []


def test_places_of_what_cannot_be_kept() -> None:
    circle: list[object] = []
    circle.append(circle)
    deep: object = 1
    for _ in range(MAX_DEPTH + 5):
        deep = [deep]
    refused: list[str] = []
    found = copy_as_json({"messages": [{"content": circle}, {"content": Unreadable()}, deep, 10**5000]}, "", refused)
    assert [place.partition(": ")[0] for place in refused] == [
        "messages[0].content",
        "messages[1].content",
        "messages[2][0]",
        "messages[3]",
    ]
    orjson.dumps(found)


def test_the_same_value_twice_is_no_circle() -> None:
    shared = {"a": 1}
    refused: list[str] = []
    assert copy_as_json([shared, shared], "", refused) == [shared, shared]
    assert refused == []


def test_copies_share_nothing_that_changes() -> None:
    given = {"a": [{"b": "c"}], "when": datetime.date(2026, 1, 2), "s": {1}}
    copied = copy_json(given)
    assert copied == given
    assert isinstance(copied, dict)
    assert copied["a"] is not given["a"]
    assert copied["a"][0] is not given["a"][0]  # type: ignore[index]
    assert copied["s"] is not given["s"]


def test_whole_text_leaves_the_rest_alone() -> None:
    assert to_valid_text("plain") == "plain"
    assert to_valid_text("ünï\U0001f600") == "ünï\U0001f600"
