"""What people say about rollouts: what counts of it, what a form may say, where it is shown and found."""

from __future__ import annotations

from pathlib import Path

import pytest

from osmosis.errors import ValidationError
from osmosis.local.viewing.annotation_file import AnnotationFile
from osmosis.local.viewing.disk_library import DiskLibrary
from osmosis.records.annotation import Annotation, newest
from osmosis.testing.platform_data import rollout
from osmosis.testing.stored_run import stored_run
from osmosis.viewer.annotating import after, annotation_of
from osmosis.viewer.asked import Asked
from osmosis.viewer.calibration import calibrations
from osmosis.viewer.index.query import query_of
from osmosis.viewer.rollout_page import rollout_page


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


def test_merging_adds_what_is_not_there(tmp_path: Path) -> None:
    file = AnnotationFile(tmp_path)
    first, second = said(0, "right"), said(1, "wrong", author="bob")
    file.add(first)
    assert file.merge([second, first]) == 1
    assert file.merge([first, second]) == 0
    assert [one.author for one in file.read()] == ["ada", "bob"]


def test_queues_and_keys_label_one_after_the_other(tmp_path: Path) -> None:
    made = [rollout(row, 0, value) for row, value in enumerate([0.0, 0.9, 0.5, 1.0])]
    stored_run(tmp_path / "run", made, rows=4, attempts=1, pass_threshold=0.6)
    library = DiskLibrary([tmp_path], tmp_path / "cache", "ada")
    queue = [("label", "-"), ("sort", "unsure"), ("by", "rollout")]

    def waiting() -> list[int]:
        search = library.run("run").table().search
        return [line.row_index for line in search.rollouts(query_of(Asked(queue)), limit=9)]

    assert waiting() == [2, 1, 3, 0], "the nearest to the threshold comes first"
    run = library.run("run")
    onward = after(run, made[2], Asked([*queue, ("then", "next")]))
    assert onward == "/runs/run/rollouts/1/0?label=-&sort=unsure&by=rollout"
    run.annotate(annotation_of({"label": "wrong"}, made[2], "ada"))
    assert waiting() == [1, 3, 0]
    last = after(library.run("run"), made[0], Asked([*queue, ("then", "next")]))
    assert last == "/runs/run/rollouts/0/0?label=-&sort=unsure&by=rollout#judgement", "there is none behind it"


def test_labels_stand_beside_the_scores_of_the_same_version(tmp_path: Path) -> None:
    made = [rollout(row, 0, float(row != 1), hashes={"score": "v2" if row == 9 else "v1"}) for row in range(10)]
    stored_run(tmp_path / "run", made, rows=10, attempts=1)
    run = DiskLibrary([tmp_path], tmp_path / "cache", "ada").run("run")
    assert calibrations(run) == []
    for one in made:
        run.annotate(annotation_of({"label": "right"}, one, "ada"))
    found = {one.score_hash: (one.score, one.found.pairs, one.found.person_only) for one in calibrations(run)}
    assert found == {"v1": ("reward", 9, 1), "v2": ("reward", 1, 0)}
    page = rollout_page(run, 9, 0, Asked([]))
    assert page.values["found"].calibrated["reward"].score_hash == "v2"
    assert page.values["found"].calibrated["reward"].found.pairs == 1
