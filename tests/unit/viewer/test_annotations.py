"""What people say about rollouts: what counts of it, what a form may say, where it is shown and found."""

from __future__ import annotations

from pathlib import Path

import pytest

from osmosis.errors import ValidationError
from osmosis.local.viewing.annotation_file import AnnotationFile
from osmosis.records.annotation import Annotation, newest
from osmosis.testing.platform_data import rollout
from osmosis.viewer.annotating import annotation_of


def said(row: int, label: str = "", author: str = "ada", **more: object) -> Annotation:
    return Annotation.model_validate({"row_index": row, "attempt": 0, "label": label, "author": author, **more})


def test_of_one_person_the_newest_counts_and_an_empty_one_takes_back() -> None:
    every = [said(1, "wrong"), said(0, "right"), said(1, "right"), said(1, "wrong", "bob"), said(0)]
    assert [(one.row_index, one.author, one.label) for one in newest(every)] == [
        (1, "ada", "right"),
        (1, "bob", "wrong"),
    ]


@pytest.mark.parametrize(
    ("one", "passes"),
    [
        (said(0, "right"), True),
        (said(0, "wrong", score=1.0), False),
        (said(0, "odd", score=0.7), True),
        (said(0, score=0.2), False),
        (said(0, "unsure"), None),
    ],
)
def test_whether_a_person_would_let_it_pass(one: Annotation, passes: bool | None) -> None:
    assert one.passes(0.5) is passes


def test_a_form_becomes_an_annotation_of_the_rollout_that_was_seen() -> None:
    found = annotation_of({"label": " right ", "score": "0.5", "comment": "x"}, rollout(3, 1, row_key="k"), "ada")
    assert (found.place, found.row_key, found.rollout_id) == ((0, 3, 1), "k", "r-3-1")
    assert (found.label, found.score, found.comment) == ("right", 0.5, "x")


@pytest.mark.parametrize("field", ["label", "score", "comment"])
def test_a_wrong_field_is_named(field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        annotation_of({field: "x" * 5000}, rollout(0, 0), "ada")
    with pytest.raises(ValidationError, match="score"):
        annotation_of({"score": "nan"}, rollout(0, 0), "ada")


def test_a_torn_line_costs_itself_alone(tmp_path: Path) -> None:
    file = AnnotationFile(tmp_path)
    assert (file.size, file.read()) == (0, [])
    file.add(said(0, "right"))
    with file.path.open("ab") as lines:
        lines.write(b'{"row_index": 1, "att')
    file.add(said(2, "wrong"))
    assert [one.row_index for one in file.read()] == [0, 2]
