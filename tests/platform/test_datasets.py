"""Datasets over the wire: uploads simple and in parts, checks with line numbers, versions, downloads."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from osmosis.platform import tables
from osmosis.platform.datasets import ingest
from osmosis.platform.objects.parts import dataset_key, upload_key

from .conftest import ON_SQLITE


def rows(count: int = 6, **extra) -> bytes:
    lines = [{"user_prompt": f"What is {n}?", "ground_truth": str(n), **extra} for n in range(count)]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


@pytest.fixture
def in_parts(site):
    """Uploads above 128 bytes travel in parts of 64."""
    object.__setattr__(site.platform.settings, "part_bytes", 64)
    return site


def path_of(url: str) -> str:
    """A signed URL as the in-process client wants it."""
    return "/" + url.split("/", 3)[3]


def test_upload_check_preview_download(site) -> None:
    content = rows()
    dataset = site.upload("sums", content)
    assert dataset["status"] == "uploaded"
    assert dataset["row_count"] == 6
    assert dataset["sha256"] == hashlib.sha256(content).hexdigest()
    assert dataset["data_preview"][2]["ground_truth"] == "2"

    by_name, by_id = site.json("GET", "datasets/sums"), site.json("GET", f"datasets/{dataset['id']}")
    assert by_name == by_id == dataset
    link = site.json("GET", "datasets/sums/download")
    assert link["file_name"] == "sums.jsonl"
    fetched = site.anonymous.get(path_of(link["presigned_url"]))
    assert fetched.content == content


def test_the_answer_of_create_has_what_every_client_generation_reads(site) -> None:
    body = {"file_name": "x", "file_size": 10, "extension": "csv"}
    upload = site.json("POST", "datasets", json=body)["upload"]
    assert upload["method"] == "simple"
    assert {"presigned_url", "expires_in", "upload_headers", "s3_key", "upload_id"} <= set(upload)


def test_a_large_file_travels_in_parts_with_etags(in_parts) -> None:
    site = in_parts
    content = rows(10)
    body = {"file_name": "big", "file_size": len(content), "extension": "jsonl"}
    created = site.json("POST", "datasets", json=body)
    upload = created["upload"]
    assert upload["method"] == "multipart"
    assert upload["total_parts"] == len(upload["presigned_urls"]) == -(-len(content) // upload["part_size"])
    parts = []
    for part in upload["presigned_urls"]:
        start = (part["part_number"] - 1) * upload["part_size"]
        piece = content[start : start + upload["part_size"]]
        assert len(piece) == part["size"]
        sent = site.anonymous.put(path_of(part["presigned_url"]), content=piece)
        parts.append({"PartNumber": part["part_number"], "ETag": sent.headers["ETag"]})
    done = {"file_extension": "jsonl", "parts": parts}
    first = site.json("POST", f"datasets/{created['id']}/complete", json=done)
    assert (first["status"], first["row_count"]) == ("uploaded", 10)
    assert site.json("POST", f"datasets/{created['id']}/complete", json=done) == first


def test_a_missing_part_is_named(in_parts) -> None:
    site = in_parts
    content = rows(10)
    created = site.json("POST", "datasets", json={"file_name": "b", "file_size": len(content), "extension": "jsonl"})
    first = created["upload"]["presigned_urls"][0]
    site.anonymous.put(path_of(first["presigned_url"]), content=content[: first["size"]])
    refused = site.json("POST", f"datasets/{created['id']}/complete", expect=400, json={})
    assert "part 2 of" in refused["message"]


BAD = [
    ("jsonl", b'{"user_prompt": "a", "ground_truth": "1"}\n{oops}\n', "line 2", "not JSON"),
    ("jsonl", rows(3) + b'{"user_prompt": " ", "ground_truth": "4"}\n', "line 4", "user_prompt must be non-blank text"),
    ("jsonl", rows(4) + b'{"user_prompt": "q", "ground_truth": "4", "x": 1}\n', "line 5", "adds 'x'"),
    ("jsonl", rows(4) + b"[1]\n", "line 5", "a row must be an object, not a list"),
    ("jsonl", rows(4) + b'{"user_prompt": "q", "ground_truth": NaN}\n', "line 5", "not JSON"),
    ("jsonl", rows(4) + b'{"user_prompt": "\xff", "ground_truth": "1"}\n', "line 5", "not UTF-8"),
    ("jsonl", rows(3), "", "at least 4"),
    ("jsonl", b'{"prompt": "a"}\n' * 5, "line 1", "no user_prompt"),
    ("jsonl", b'{"user_prompt": "a"}\n' * 5, "", "no column 'ground_truth' or 'label'"),
    ("csv", b"user_prompt,ground_truth\na,1\nb,2,3\n", "line 3", "3 columns, the header has 2"),
    ("csv", b'user_prompt,ground_truth\n"a\nb",1\nc,2\nd,\n', "line 5", "no ground_truth"),
    ("csv", b"user_prompt,user_prompt\na,1\n", "line 1", "duplicate columns"),
    ("csv", b'user_prompt,ground_truth\n"a,1\n', "line 2", "not CSV"),
    ("json", b'[{"user_prompt": "a", "ground_truth": "1"}, 3]', "row 1", "a row must be an object, not a number"),
    ("parquet", b"PAR1 this is not parquet", "", "not a readable Parquet file"),
    ("jsonl", b'{"metadata": {"a": 1}}\n{"metadata": {"a": "x"}}\n', "line 2", "is text, but a number in earlier rows"),
    ("jsonl", b'{"metadata": {"a": {}}}\n', "line 1", "metadata.a is an empty object"),
    ("jsonl", b'{"metadata": {"a": 9223372036854775808}}\n', "line 1", "does not fit 64 bits"),
    ("jsonl", b'{"metadata": ""}\n', "line 1", "metadata is text that is not JSON"),
    ("jsonl", b"[" * 100_000 + b"\n", "line 1", "not JSON"),
]


@pytest.mark.parametrize(("extension", "content", "where", "message"), BAD)
def test_a_bad_file_is_refused_with_its_line(shared, extension, content, where, message) -> None:
    created = shared.announce("bad", content, extension)
    refused = shared.complete(created, expect=400)
    assert refused["code"] == "VALIDATION"
    assert any(issue["where"] == where and message in issue["message"] for issue in refused["issues"]), refused
    again = shared.complete(created, expect=400)
    assert again["issues"] == refused["issues"]
    dataset = shared.json("GET", "datasets/bad")
    assert dataset["status"] == "error"
    assert dataset["error"]
    logs = shared.json("GET", "datasets/bad/logs?limit=200")["logs"]
    assert any(message in line["message"] for line in logs)
    assert not shared.platform.settings.located(dataset_key(created["id"])).exists() or not any(
        shared.platform.settings.located(dataset_key(created["id"])).iterdir()
    )


def test_at_most_five_errors_are_listed_and_all_are_counted(shared) -> None:
    content = b'{"user_prompt": "", "ground_truth": "1"}\n' * 9
    refused = shared.complete(shared.announce("bad", content), expect=400)
    assert len(refused["issues"]) == 5
    assert "9 problems" in refused["message"]


@ON_SQLITE
def test_csv_parquet_json_and_metadata_files_are_read(site, tmp_path) -> None:
    table = pa.table({"user_prompt": ["a", "b", "c", "d"], "label": ["1", "2", "3", "4"]})
    pq.write_table(table, tmp_path / "t.parquet")
    files = {
        "p": ("parquet", (tmp_path / "t.parquet").read_bytes()),
        "c": ("csv", b"\xef\xbb\xbfuser_prompt,ground_truth\n" + b'"a,\nb",1\n' * 4),
        "j": ("json", b"[" + b",".join([b'{"user_prompt": "a", "ground_truth": 1.5}'] * 4) + b"]"),
        "m": ("jsonl", b'{"metadata": {"task": "x", "n": 1, "f": null}}\n' * 4),
        "s": ("csv", b"metadata\n" + b'"{""task"": ""x""}"\n' * 4),
    }
    for name, (extension, content) in files.items():
        dataset = site.upload(name, content, extension)
        assert (dataset["status"], dataset["row_count"]) == ("uploaded", 4), name
        assert len(dataset["data_preview"]) == 4


def small(truth: str) -> bytes:
    return (b'{"user_prompt":"q","ground_truth":"%s"}\n' % truth.encode()) * 4


def test_a_taken_name_is_a_conflict_and_overwriting_makes_a_new_version(site) -> None:
    first = site.upload("d", small("1"))
    body = {"file_name": "d", "file_size": 5, "extension": "jsonl"}
    refused = site.json("POST", "datasets", expect=409, json=body)
    assert refused["existing_dataset_id"] == first["id"]
    second = site.upload("d", small("2"), overwrite_dataset_id=first["id"])
    assert second["id"] == first["id"]
    assert second["sha256"] != first["sha256"]
    assert second["updated_at"] > first["updated_at"]
    assert len(list(site.platform.settings.located(dataset_key(first["id"])).iterdir())) == 1


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_uploads_of_one_dataset_at_once_both_end_well(site, order, named) -> None:
    """Whoever says last that it is there has the dataset; also among clients that do not say which upload it is."""
    first = site.upload("d", small("0"))
    both = [site.announce("d", small(text), overwrite_dataset_id=first["id"]) for text in ("1", "2")]
    done = []
    for number in order:
        body = {"upload_id": both[number]["upload"]["upload_id"]} if named else {}
        done.append(site.json("POST", f"datasets/{first['id']}/complete", json=body))
    assert [answer["status"] for answer in done] == ["uploaded", "uploaded"]
    hashes = {hashlib.sha256(small(text)).hexdigest() for text in ("1", "2")}
    assert {answer["sha256"] for answer in done} == hashes
    assert len(list(site.platform.settings.located(dataset_key(first["id"])).iterdir())) == 1
    assert set(site.stored(sa.select(tables.Upload.status))) == {"done"}


def test_who_finishes_or_gives_up_leaves_the_upload_of_somebody_else_alone(site) -> None:
    """One asks again after a lost answer while the other still sends, and one gives up while the other does not."""
    first = site.upload("d", small("0"))
    body = {"file_name": "d", "file_size": len(small("2")), "extension": "jsonl", "overwrite_dataset_id": first["id"]}
    whole = site.announce("d", small("1"), overwrite_dataset_id=first["id"])
    sending = site.json("POST", "datasets", json=body)
    mine = site.json("POST", f"datasets/{first['id']}/complete", json={})
    assert mine["sha256"] == hashlib.sha256(small("1")).hexdigest()
    assert site.json("POST", f"datasets/{first['id']}/complete", json={}) == mine
    third = site.announce("d", small("3"), overwrite_dataset_id=first["id"])
    site.json("POST", f"datasets/{first['id']}/abort", json={"upload_id": third["upload"]["upload_id"]})
    site.json("POST", f"datasets/{first['id']}/abort", expect=404, json={"upload_id": "another"})
    assert site.anonymous.put(path_of(sending["upload"]["presigned_url"]), content=small("2")).status_code == 200
    theirs = site.json("POST", f"datasets/{first['id']}/complete", json={})
    assert theirs["sha256"] == hashlib.sha256(small("2")).hexdigest()
    assert whole["id"] == sending["id"] == first["id"]


def test_a_refused_new_version_leaves_the_old_one(site) -> None:
    first = site.upload("d", small("1"))
    site.complete(site.announce("d", b"{]\n", overwrite_dataset_id=first["id"]), expect=400)
    now = site.json("GET", "datasets/d")
    assert (now["status"], now["sha256"]) == ("uploaded", first["sha256"])


def test_the_wrong_size_and_a_wrong_signature_are_refused(site) -> None:
    created = site.json("POST", "datasets", json={"file_name": "d", "file_size": 100, "extension": "jsonl"})
    url = path_of(created["upload"]["presigned_url"])
    assert site.anonymous.put(url, content=b"x" * 101).status_code == 400
    assert site.anonymous.put(url.replace("signature=", "signature=0"), content=b"x").status_code == 403
    assert site.anonymous.put(url.replace("/1?", "/2?"), content=b"x").status_code == 403
    assert site.anonymous.get(url).status_code in (403, 404, 405)
    assert site.anonymous.put(url, content=small("1")[:50]).status_code == 200
    refused = site.json("POST", f"datasets/{created['id']}/complete", expect=400, json={})
    assert "50 bytes arrived instead of the announced 100" in refused["message"]


def test_a_damaged_part_is_noticed(site) -> None:
    content = small("1")
    created = site.announce("d", content)
    parts = [{"PartNumber": 1, "ETag": '"0123"'}]
    refused = site.json("POST", f"datasets/{created['id']}/complete", expect=400, json={"parts": parts})
    assert "corrupted in transit" in refused["message"]


def test_abort_and_delete(site) -> None:
    created = site.json("POST", "datasets", json={"file_name": "d", "file_size": 100, "extension": "jsonl"})
    site.json("POST", f"datasets/{created['id']}/abort", json={})
    assert site.json("GET", "datasets/d")["status"] == "cancelled"
    site.json("POST", f"datasets/{created['id']}/complete", expect=409, json={})
    kept = site.upload("d", small("1"))
    site.json("DELETE", "datasets/d", expect=204)
    site.json("GET", "datasets/d", expect=404)
    assert not site.platform.settings.located(dataset_key(kept["id"])).exists()


@pytest.mark.parametrize(
    "body",
    [
        {"file_name": "", "file_size": 1, "extension": "csv"},
        {"file_name": "a/b", "file_size": 1, "extension": "csv"},
        {"file_name": "a", "file_size": 0, "extension": "csv"},
        {"file_name": "a", "file_size": 6 * 1024**3, "extension": "csv"},
        {"file_name": "a", "file_size": 1, "extension": "exe"},
        {"file_name": "a", "extension": "csv"},
    ],
)
def test_what_cannot_be_a_dataset_is_refused_at_once(shared, body) -> None:
    assert shared.json("POST", "datasets", expect=400, json=body)["issues"]


def test_pages_of_a_list(site) -> None:
    for number in range(3):
        site.upload(f"d{number}", small("1"))
    first = site.json("GET", "datasets?limit=2")
    assert [row["file_name"] for row in first["datasets"]] == ["d2", "d1"]
    assert (first["total_count"], first["has_more"], first["next_offset"]) == (3, True, 2)
    last = site.json("GET", "datasets?limit=2&offset=2")
    assert (len(last["datasets"]), last["has_more"], last["next_offset"]) == (1, False, None)
    for bad in ("limit=0", "limit=51", "offset=-1", "limit=x"):
        site.json("GET", f"datasets?{bad}", expect=400)


def test_an_upload_that_a_restart_interrupted_is_taken_up_again(site) -> None:
    created = site.announce("d", small("1"))
    assert ingest._begin(site.platform, created["id"]) is not None
    assert site.json("GET", "datasets/d")["status"] == "processing"
    for thread in ingest.recover(site.platform):
        thread.join(10)
    assert site.json("GET", "datasets/d")["status"] == "uploaded"


def test_an_upload_nobody_finished_is_given_up_after_a_day(site) -> None:
    old, new = site.announce("old", small("1")), site.announce("new", small("1"))
    with site.platform.db.write() as session:
        session.get_one(tables.Upload, old["upload"]["upload_id"]).created_at -= timedelta(days=2)
    assert ingest.forget_abandoned(site.platform) == 1
    assert site.json("GET", "datasets/old")["status"] == "cancelled"
    assert not site.platform.settings.located(upload_key(old["upload"]["upload_id"])).exists()
    assert site.complete(new)["status"] == "uploaded"
