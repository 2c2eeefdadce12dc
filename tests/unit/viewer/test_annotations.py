"""Annotations of rollouts: which count, what the form accepts, where they are shown."""

from pathlib import Path

import pytest

from osmosis.engine.journal import AnnotationFile
from osmosis.errors import ValidationError
from osmosis.local.viewing.library import LocalLibrary
from osmosis.records.run.annotations import Annotation, keep_newest
from osmosis.viewer.page import QueryParams
from osmosis.viewer.rollout_page import build_calibrations, rollout_page
from osmosis.viewer.routes import next_url, parse_annotation
from osmosis.viewer.search import parse_query
from support.platform_data import rollout
from support.stored_run import stored_run


def said(row: int, label: str = "", author: str = "ada", **more: object) -> Annotation:
    return Annotation.model_validate({"row_index": row, "attempt": 0, "label": label, "author": author, **more})


def test_of_one_person_the_newest_counts_and_an_empty_one_takes_back() -> None:
    every = [said(1, "wrong"), said(0, "right"), said(1, "right"), said(1, "wrong", "bob"), said(0)]
    assert [(one.row_index, one.author, one.label) for one in keep_newest(every)] == [
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
    found = parse_annotation({"label": " right ", "score": "0.5", "comment": "x"}, rollout(3, 1, row_key="k"), "ada")
    assert (found.place, found.row_key, found.rollout_id) == ((0, 3, 1), "k", "r-3-1")
    assert (found.label, found.score, found.comment) == ("right", 0.5, "x")


@pytest.mark.parametrize("field", ["label", "score", "comment"])
def test_a_wrong_field_is_named(field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        parse_annotation({field: "x" * 5000}, rollout(0, 0), "ada")
    with pytest.raises(ValidationError, match="score"):
        parse_annotation({"score": "nan"}, rollout(0, 0), "ada")


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
    library = LocalLibrary([tmp_path], tmp_path / "cache", "ada")
    queue = [("label", "-"), ("sort", "unsure"), ("by", "rollout")]

    def waiting() -> list[int]:
        search = library.run("run").table().search
        return [line.row_index for line in search.rollouts(parse_query(QueryParams(queue)), limit=9)]

    assert waiting() == [2, 1, 3, 0], "the nearest to the threshold comes first"
    run = library.run("run")
    onward = next_url(run, made[2], QueryParams([*queue, ("then", "next")]))
    assert onward == "/runs/run/rollouts/1/0?label=-&sort=unsure&by=rollout"
    run.annotate(parse_annotation({"label": "wrong"}, made[2], "ada"))
    assert waiting() == [1, 3, 0]
    last = next_url(library.run("run"), made[0], QueryParams([*queue, ("then", "next")]))
    assert last == "/runs/run/rollouts/0/0?label=-&sort=unsure&by=rollout#judgement", "there is none behind it"


def test_labels_stand_beside_the_scores_of_the_same_version(tmp_path: Path) -> None:
    made = [rollout(row, 0, float(row != 1), hashes={"score": "v2" if row == 9 else "v1"}) for row in range(10)]
    stored_run(tmp_path / "run", made, rows=10, attempts=1)
    run = LocalLibrary([tmp_path], tmp_path / "cache", "ada").run("run")
    assert build_calibrations(run) == []
    for one in made:
        run.annotate(parse_annotation({"label": "right"}, one, "ada"))
    found = {one.score_hash: (one.score, one.found.pairs, one.found.person_only) for one in build_calibrations(run)}
    assert found == {"v1": ("reward", 9, 1), "v2": ("reward", 1, 0)}
    page = rollout_page(run, 9, 0, QueryParams([]))
    assert page.values["found"]["calibrated"]["reward"].score_hash == "v2"
    assert page.values["found"]["calibrated"]["reward"].found.pairs == 1
