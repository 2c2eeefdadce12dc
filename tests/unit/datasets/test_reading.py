"""Reading datasets: every format alike, all bad rows at once with their lines, and never more than is needed."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from osmosis.datasets.keys import SelectedRows
from osmosis.datasets.reader import count_rows
from osmosis.datasets.scan import read_rows, row_hash, scan_dataset
from osmosis.errors import DatasetError
from osmosis.records.run.plan import Selection

ROWS = [{"system_prompt": "s", "user_prompt": f"p{i}", "ground_truth": str(i), "extra": i} for i in range(10)]


def write(folder, suffix, rows=ROWS):
    path = folder / f"d.{suffix}"
    if suffix == "jsonl":
        path.write_text("\n".join(json.dumps(r) for r in rows) + "\n")
    elif suffix == "json":
        path.write_text(json.dumps(rows))
    elif suffix == "csv":
        lines = [",".join(rows[0])] + [",".join(str(v) for v in r.values()) for r in rows]
        path.write_text("\n".join(lines) + "\n")
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "parquet"])
def test_every_format_gives_the_same_rows(tmp_path, suffix):
    path = write(tmp_path, suffix)
    found = list(read_rows(path))
    assert [r.index for r in found] == list(range(10))
    assert [r.data["user_prompt"] for r in found] == [r["user_prompt"] for r in ROWS]
    assert found[3].ground_truth == "3"
    facts = scan_dataset(path)
    assert (facts.rows, facts.selected, facts.bad) == (10, 10, [])
    assert facts.columns == list(ROWS[0])
    assert facts.sha256


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(limit=3), [0, 1, 2]),
        (Selection(offset=7), [7, 8, 9]),
        (Selection(offset=2, limit=2), [2, 3]),
        (Selection(rows=[8, 1]), [1, 8]),
    ],
)
def test_selects_rows(tmp_path, selection, expected):
    assert [r.index for r in read_rows(write(tmp_path, "jsonl"), selection)] == expected


def test_samples_a_share_by_seed(tmp_path):
    path = write(tmp_path, "jsonl")
    first = [r.index for r in read_rows(path, Selection(sample=0.3, seed=1))]
    assert len(first) == 3
    assert first == [r.index for r in read_rows(path, Selection(sample=0.3, seed=1))]
    drawn = {tuple(r.index for r in read_rows(path, Selection(sample=0.3, seed=s))) for s in range(8)}
    assert len(drawn) > 1
    assert len(list(read_rows(path, Selection(sample=0.001)))) == 1


def test_all_bad_rows_are_reported_with_their_lines(tmp_path):
    path = tmp_path / "d.jsonl"
    lines = [json.dumps(ROWS[0]), "{not json", "[1]", "", '{"user_prompt": "  "}', '{"other": 1}', json.dumps(ROWS[1])]
    path.write_text("\n".join(lines))
    facts = scan_dataset(path)
    assert [(bad.index, bad.line) for bad in facts.bad] == [(1, 2), (2, 3), (3, 5), (4, 6)]
    with pytest.raises(DatasetError, match=r"invalid rows \(4\): line 2: not JSON.*line 3.*line 5.*line 6"):
        facts.refuse_bad(path)
    assert [r.index for r in read_rows(path, skip_bad=True)] == [0, 5]
    with pytest.raises(DatasetError, match="line 2"):
        list(read_rows(path))


def test_the_head_of_a_file_is_read_without_its_rest(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_bytes(b"".join(json.dumps(r).encode() + b"\n" for r in ROWS) + b"\xff\xfe broken" * 3)
    facts = scan_dataset(path, Selection(limit=10))
    assert facts.bad == []
    assert facts.rows is None
    assert facts.sha256 is None
    assert scan_dataset(path).bad


def test_known_columns_in_any_case_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"User_Prompt": "hi", "GROUND_TRUTH": "x", "Extra": 1}).encode())
    (row,) = read_rows(path)
    assert row.data == {"user_prompt": "hi", "ground_truth": "x", "Extra": 1}
    path.write_text(json.dumps({"user_prompt": "a", "USER_PROMPT": "b"}))
    assert "differ only in case" in str(scan_dataset(path).bad[0])


def test_a_chat_column_opens_the_conversation(tmp_path):
    path = tmp_path / "d.jsonl"
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    path.write_text(json.dumps({"messages": talk}))
    (row,) = read_rows(path)
    assert row.messages() == talk


def test_ground_truth_is_optional_until_it_is_required(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text('{"user_prompt": "a"}')
    assert scan_dataset(path).bad == []
    assert scan_dataset(path, require_ground_truth=True).bad


def test_bytes_that_are_no_utf8_are_bad_rows(tmp_path):
    path = tmp_path / "d.csv"
    path.write_bytes(b"user_prompt\nfine\n\xff\xfe\n")
    assert [bad.line for bad in scan_dataset(path).bad] == [3]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.txt", "x", "unknown format"),
        ("d.json", '{"a": 1', "JSON"),
        ("d.json", ' {"a": 1}', "not a JSON array of objects"),
        ("d.parquet", "x", "Parquet"),
        ("no.jsonl", None, "no such dataset"),
    ],
)
def test_files_that_are_no_dataset(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(DatasetError, match=message):
        scan_dataset(path)


def test_rows_beyond_the_end_are_named(tmp_path):
    with pytest.raises(DatasetError, match="no row 12"):
        scan_dataset(write(tmp_path, "jsonl"), Selection(rows=[1, 12]))


def test_hashes_see_content_not_order():
    assert row_hash({"a": 1, "b": 2}) == row_hash({"b": 2, "a": 1})
    assert row_hash({"a": 1}) != row_hash({"a": 2})


def test_counts(tmp_path):
    assert count_rows(write(tmp_path, "parquet")) == 10


@pytest.mark.parametrize(
    ("ids", "keys"),
    [
        (["a", 7, "c"], ["a", "7", "c"]),
        (["a", "a", "c"], None),
        (["1", 1, "c"], None),
        (["a", None, "c"], None),
        (["a", " ", "c"], None),
        ([True, "b", "c"], None),
        (["a" * 300, "b", "c"], None),
    ],
)
def test_rows_are_known_by_ids_that_name_each_of_them(tmp_path, ids, keys):
    path = write(tmp_path, "jsonl", [{"id": found, "user_prompt": "p"} for found in ids])
    rows = SelectedRows()
    facts = scan_dataset(path, rows=rows)
    found = list(read_rows(path, by_id=facts.by_id))
    assert facts.by_id is (keys is not None)
    assert [row.key for row in found] == list(rows.places) == (keys or [row.key for row in found])
    assert [rows.hash_of(row.key) for row in found] == [row.content_hash for row in found]
    assert ("id" in [warning["rule"] for warning in facts.warnings()]) is (keys is None)


def test_equal_rows_are_counted(tmp_path):
    path = write(tmp_path, "jsonl", [ROWS[0], ROWS[1], ROWS[0], ROWS[0]])
    rows = SelectedRows()
    scan_dataset(path, rows=rows)
    same, other = row_hash(ROWS[0]), row_hash(ROWS[1])
    assert rows.places == {same: 0, other: 1, f"{same}#2": 2, f"{same}#3": 3}
    assert [row.key for row in read_rows(path)] == list(rows.places)


def test_the_scan_keeps_the_rows_of_a_small_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [{"user_prompt": f"{i % 3}", "ground_truth": "1"} for i in range(8)]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines[:4], {"user_prompt": " "}, *lines[4:]]))
    selection = Selection(offset=1, limit=6)
    facts = scan_dataset(path, selection, keep=True)
    read = list(read_rows(path, selection, skip_bad=True, by_id=facts.by_id))
    assert list(facts.kept_rows()) == read
    assert len(read) == 5
    assert list(facts.kept_rows()) == read, "a second pass gives the same keys"
    assert scan_dataset(path, selection).kept_rows() is None
