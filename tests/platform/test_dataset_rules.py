"""One rule book: a local scan, `osmosis check` and a platform's upload check find the same in a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from osmosis.cli.main import main
from osmosis.datasets.rules import RULES, Severity
from osmosis.datasets.scan import check_upload, read_rows, scan_dataset
from osmosis.errors import DatasetError

GOOD = [{"user_prompt": f"q{n}", "ground_truth": str(n)} for n in range(5)]


def lines(*rows: object, end: str = "\n") -> bytes:
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    return "".join(text + end for text in texts).encode()


def meta(*values: object) -> bytes:
    return lines(*({"metadata": value} for value in values))


@dataclass(frozen=True)
class Odd:
    """A file, and the codes of the rules that it breaks."""

    content: bytes
    broken: frozenset[str] = frozenset()
    suffix: str = "jsonl"


def odd(content: bytes, *broken: str, suffix: str = "jsonl") -> Odd:
    return Odd(content, frozenset(broken), suffix)


NESTED: object = "x"
for _ in range(300):
    NESTED = [NESTED]
ONE = {"a": 1}

ODD = {
    "good": odd(lines(*GOOD)),
    "byte order mark": odd(b"\xef\xbb\xbf" + lines(*GOOD)),
    "carriage returns": odd(lines(*GOOD, end="\r\n")),
    "blank lines": odd(b"\n \n" + lines(*GOOD, end="\n\n")),
    "no last newline": odd(lines(*GOOD).rstrip()),
    "duplicate keys": odd(lines(*GOOD, '{"user_prompt": "a", "user_prompt": "b", "ground_truth": "1"}')),
    "no rows": odd(b"\n", "rows"),
    "three rows": odd(lines(*GOOD[:3]), "rows"),
    "an empty prompt": odd(lines(*GOOD, {"user_prompt": "", "ground_truth": "1"}), "user_prompt"),
    "a blank prompt beside metadata": odd(lines(*[{"user_prompt": " ", "metadata": ONE}] * 4), "user_prompt"),
    "a number as prompt": odd(lines(*GOOD, {"user_prompt": 3, "ground_truth": "1"}), "user_prompt"),
    "a number as system prompt": odd(lines(*[{**row, "system_prompt": 1} for row in GOOD]), "system_prompt"),
    "null prompt, nothing else": odd(lines(*GOOD, {"user_prompt": None, "ground_truth": "1"}), "no_prompt"),
    "only messages": odd(lines(*[{"messages": [{"role": "user", "content": "a"}]}] * 4), "columns"),
    "messages without a role": odd(lines(*[{"messages": [{"content": "a"}], "label": "1"}] * 4), "messages"),
    "a row lacks its prompt but has messages": odd(
        lines(
            *({"messages": [], **row} for row in GOOD),
            {"user_prompt": None, "messages": [{"role": "user"}], "ground_truth": "1"},
        ),
        "empty_prompt",
    ),
    "mixed columns": odd(lines(*GOOD, {**GOOD[0], "more": 1}), "same_columns"),
    "columns in other case": odd(lines(*[{"User_Prompt": "a", " GROUND_TRUTH": "1"}] * 4)),
    "columns that differ in case": odd(lines(*GOOD, {"user_prompt": "a", "USER_PROMPT": "b"}), "column_twice"),
    "no ground truth": odd(lines(*({"user_prompt": "a"} for _ in range(4))), "columns"),
    "one row without ground truth": odd(lines(*GOOD, {"user_prompt": "a", "ground_truth": None}), "ground_truth"),
    "a number as ground truth": odd(lines(*[{"user_prompt": "a", "ground_truth": 3}] * 4)),
    "a label": odd(lines(*[{"user_prompt": "a", "label": "x"}] * 4)),
    "ids": odd(lines(*({**row, "id": n} for n, row in enumerate(GOOD)))),
    "an id twice": odd(lines(*({**row, "id": n % 4} for n, row in enumerate(GOOD))), "id"),
    "a row without its id": odd(lines(*({**row, "id": n or None} for n, row in enumerate(GOOD))), "id"),
    "broken JSON": odd(lines(*GOOD, "{oops"), "not_json"),
    "NaN": odd(lines(*GOOD, '{"user_prompt": "a", "ground_truth": NaN}'), "not_json"),
    "too deep to parse": odd(lines(*GOOD, "[" * 100_000), "not_json"),
    "deep": odd(lines(*GOOD, {**GOOD[0], "more": NESTED}), "same_columns"),
    "too deep to write": odd(lines(*GOOD, '{"user_prompt": "a", "x": ' + "[" * 1020 + "]" * 1020 + "}"), "row_depth"),
    "no UTF-8": odd(lines(*GOOD) + b'{"user_prompt": "\xff", "ground_truth": "1"}\n', "not_utf8"),
    "a list as row": odd(lines(*GOOD, "[1]"), "row_type"),
    "text as row": odd(lines(*GOOD, '"a"'), "row_type"),
    "a huge number": odd(lines(*[{"user_prompt": "a", "ground_truth": 10**30}] * 4)),
    "a huge number in metadata": odd(meta(ONE, ONE, ONE, {"a": 10**30}), "metadata_int64"),
    "an unsigned number in metadata": odd(meta(ONE, ONE, ONE, {"a": 2**63}), "metadata_int64"),
    "a huge number in a list in metadata": odd(meta(*[{"a": [1, 2]}] * 3, {"a": [1, 10**30]}), "metadata_int64"),
    "a huge float in metadata": odd(meta({"a": 1.5}, {"a": 1e30}, {"a": -1e300}, {"a": 2})),
    "metadata alone": odd(meta(ONE, ONE, ONE, ONE)),
    "metadata as text": odd(meta('{"a": 1}', '{"a": 1}', '{"a": 2}', '{"a": 3}')),
    "metadata that is not JSON": odd(meta(ONE, ONE, ONE, "{"), "metadata_text"),
    "metadata that is empty": odd(meta(ONE, ONE, ONE, {}), "metadata"),
    "metadata that is null beside a prompt": odd(
        lines(*[{"user_prompt": "a", "metadata": value} for value in (ONE, ONE, ONE, None)]), "metadata"
    ),
    "an empty object in metadata": odd(meta(*[{"a": {}}] * 4), "metadata_empty"),
    "another type in metadata": odd(meta(ONE, ONE, ONE, {"a": "x"}), "metadata_type"),
    "another type in a list": odd(meta(*[{"a": [[1], [2]]}] * 3, {"a": [["x"]]}), "metadata_type"),
    "a column more in metadata": odd(meta(ONE, ONE, ONE, {"a": 1, "b": None})),
    "an array": odd(json.dumps(GOOD).encode(), suffix="json"),
    "an array behind a mark": odd(b"\xef\xbb\xbf" + json.dumps(GOOD).encode(), suffix="json"),
    "an array with a number": odd(json.dumps([*GOOD, 3]).encode(), "row_type", suffix="json"),
    "an object": odd(b'{"user_prompt": "a"}', "not_json", suffix="json"),
    "half an array": odd(json.dumps(GOOD).encode()[:-3], "not_json", suffix="json"),
    "rows as .json": odd(lines(*GOOD), "not_json", suffix="json"),
    "CSV": odd(b"user_prompt,ground_truth\n" + b"a,1\n" * 4, suffix="csv"),
    "CSV with a mark and CRLF": odd(b"\xef\xbb\xbfUser_Prompt, label\r\n" + b'"a\nb",1\r\n' * 4, suffix="csv"),
    "CSV with blank lines": odd(b"\nuser_prompt,ground_truth\n\n" + b"a,1\n\n" * 4, suffix="csv"),
    "ragged CSV": odd(b"user_prompt,ground_truth\n" + b"a,1\n" * 4 + b"b,2,3\nc\n", "column_count", suffix="csv"),
    "CSV with an empty cell": odd(b"user_prompt,ground_truth\n" + b"a,1\n" * 4 + b"b,\n", "ground_truth", suffix="csv"),
    "CSV without a prompt": odd(b"user_prompt,ground_truth\n" + b"a,1\n" * 4 + b",1\n", "no_prompt", suffix="csv"),
    "CSV with a column twice": odd(b"user_prompt,user_prompt \n" + b"a,1\n" * 4, "column_twice", suffix="csv"),
    "CSV with an open quote": odd(b"user_prompt,ground_truth\n" + b"a,1\n" * 4 + b'"b,1\n', "not_csv", suffix="csv"),
    "CSV that is no UTF-8": odd(b"user_prompt,ground_truth\n" + b"a,1\n" * 4 + b"\xff,1\n", "not_utf8", suffix="csv"),
    "CSV with metadata": odd(b"metadata\n" + b'"{""a"": 1}"\n' * 4, suffix="csv"),
    "a long cell": odd(b"user_prompt,ground_truth\n" + b"a" * 200_000 + b",1\n" + b"a,1\n" * 4, suffix="csv"),
    "no Parquet": odd(b"PAR1 this is not parquet", "not_parquet", suffix="parquet"),
    "JSON lines as .parquet": odd(lines(*GOOD), "not_parquet", suffix="parquet"),
    "JSON lines as .csv": odd(lines(*({"user_prompt": "a"} for _ in range(5))), "no_prompt", suffix="csv"),
}


def strict(codes: frozenset[str]) -> bool:
    """Whether a platform refuses a file that breaks these rules."""
    return any(RULES[code].severity is not Severity.NOTE for code in codes)


def locally(path: Path) -> set[str]:
    """What a local run finds; a file that cannot be read ends it with one message."""
    try:
        return set(scan_dataset(path).counts)
    except DatasetError as error:
        (ended,) = [found for found in check_upload(path).bad if found.message in error.message]
        return {ended.rule.code}


@pytest.mark.parametrize("name", ODD)
def test_three_ways_one_verdict(name, tmp_path, capsys, shared):
    case = ODD[name]
    path = tmp_path / f"d.{case.suffix}"
    path.write_bytes(case.content)
    assert locally(path) == case.broken

    code = main(["dataset", "validate", path.name, "--json"], environ={"HOME": str(tmp_path)}, cwd=tmp_path)
    said = capsys.readouterr()
    issues = json.loads(said.err)["error"]["details"]["issues"] if code else []
    warnings = [] if code else json.loads(said.out)["resource"]["warnings"]
    assert {found["rule"] for found in [*issues, *warnings]} == case.broken

    created = shared.announce(name, case.content, case.suffix)
    answer = shared.complete(created, expect=400 if strict(case.broken) else 200)
    refused = answer.get("issues", [])
    logs = shared.json("GET", f"datasets/{created['id']}/logs?limit=200")["logs"]
    noted = {line["details"]["rule"] for line in logs if line["level"] == "warning"}
    assert {issue["rule"] for issue in refused} | noted == case.broken
    assert [issue["message"] for issue in refused] == [issue["message"] for issue in issues]


@pytest.mark.parametrize("name", [name for name, case in ODD.items() if case.broken])
def test_a_platform_refuses_what_a_local_run_only_warns_of(name, tmp_path):
    case = ODD[name]
    path = tmp_path / f"d.{case.suffix}"
    path.write_bytes(case.content)
    errors = {code for code in case.broken if RULES[code].severity is Severity.ERROR}
    if errors:
        with pytest.raises(DatasetError):
            list(read_rows(path))
    else:
        facts = scan_dataset(path)
        assert facts.bad == []
        assert len(list(read_rows(path))) == facts.selected
        assert {warning["rule"] for warning in facts.warnings()} == case.broken


def test_every_rule_has_a_file_that_breaks_it():
    elsewhere = {"row_length", "ground_truth_required"}
    assert {code for case in ODD.values() for code in case.broken} == set(RULES) - elsewhere


def test_parquet_follows_the_same_rules(tmp_path):
    path = tmp_path / "d.parquet"
    rows = [*GOOD, {"user_prompt": "a", "ground_truth": None}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert set(scan_dataset(path).counts) == set(check_upload(path).counts) == {"ground_truth"}
