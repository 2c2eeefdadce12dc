"""Local runs that are taken in: from the manifest to a finished run, resumed, replaced, refused."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from osmosis.platform import tables
from osmosis.platform.run_upload import finished_run, sessions
from osmosis.records.base import utc_now
from support.platform_data import add_rollouts, add_run, report, rollout

from .conftest import ON_SQLITE

BASE = "eval-runs/imports"
ATIF = {
    "schema_version": "ATIF-v1.7",
    "agent": {"name": "osmosis-rollout-sdk", "version": "1", "model_name": "openai/gpt-5-mini"},
    "steps": [
        {"step_id": 1, "source": "user", "message": "What is 6 times 7?"},
        {
            "step_id": 2,
            "source": "agent",
            "message": "",
            "tool_calls": [{"tool_call_id": "c1", "function_name": "multiply", "arguments": {"a": 6, "b": 7}}],
            "observation": {"results": [{"source_call_id": "c1", "content": "42"}]},
        },
        {"step_id": 3, "source": "agent", "message": "#### 42"},
    ],
    "final_metrics": {"total_prompt_tokens": 50, "total_completion_tokens": 8, "total_cost_usd": 0.001},
}


def line(row: int, attempt: int, reward: float | None = 1.0, **more: Any) -> dict[str, Any]:
    status = "success" if reward is not None else "failed"
    name = f"row_{row}_run_{attempt}.json" if reward is not None else None
    known = {"row_index": row, "run_index": attempt, "rollout_id": f"r-{row}-{attempt}", "reward": reward}
    return {**known, "trajectory_filename": name, "status": status, "tokens": 30, "duration_ms": 5.0, **more}


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@dataclass
class Upload:
    """A local run, and how a client sends it."""

    site: Any
    content: dict[str, bytes]
    local_run_id: str = "local-1"
    name: str = "nightly"
    n: int = 2
    extra: dict[str, Any] = field(default_factory=dict)

    def manifest(self) -> dict[str, Any]:
        specs = [
            {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for path, data in self.content.items()
        ]
        experiment = {
            "rollout": {"name": "multiply", "source_digest": "d", "commit_sha": "4f1c2d3e" * 5, "branch": "main"},
            "entrypoint": "main.py",
            "model_path": "openai/gpt-5-mini",
            "dataset": {"name": "sums", "sha256": "0" * 64, "selected_source_rows": [0, 1]},
        }
        run = {
            "name": self.name,
            "started_at": "2026-01-02T03:04:05+00:00",
            "completed_at": "2026-01-02T03:05:05",
            "experiment_config": experiment,
            "evaluation_config": {"n": self.n, "pass_threshold": 1.0},
        }
        known = {"schema_version": 1, "local_run_id": self.local_run_id, "run": run, "files": specs}
        digest = hashlib.sha256(json.dumps(specs).encode()).hexdigest()
        return {**known, "manifest_digest": digest, "schema_versions": {}, "provenance": {"cli": "0"}, **self.extra}

    def open(self, expect: int = 200) -> Any:
        return self.site.json("POST", BASE, expect=expect, json=self.manifest())

    def send(self, session: str, path: str, data: bytes | None = None, expect: int = 200) -> Any:
        asked = self.site.json("POST", f"{BASE}/{session}/uploads", json={"paths": [path]})["files"][0]["upload"]
        data = self.content[path] if data is None else data
        size = asked.get("part_size") or max(1, len(data))
        parts = []
        for number, part in enumerate(asked.get("presigned_urls") or [asked]):
            url = "/" + part["presigned_url"].split("/", 3)[3]
            sent = self.site.anonymous.put(url, content=data[number * size : (number + 1) * size])
            assert sent.status_code == 200, sent.text
            parts.append({"part_number": number + 1, "etag": sent.headers["ETag"]})
        body = {"path": path, **({"parts": parts} if asked["method"] == "multipart" else {})}
        return self.site.json("POST", f"{BASE}/{session}/uploads/complete", expect=expect, json=body)

    def run(self, expect: int = 200) -> Any:
        """From the manifest to the end."""
        opened = self.open()
        for file in opened["files"]:
            if file["state"] == "pending":
                self.send(opened["session_id"], file["path"])
        return self.finalize(opened["session_id"], expect)

    def finalize(self, session: str, expect: int = 200) -> Any:
        return self.site.json("POST", f"{BASE}/{session}/finalize", expect=expect, json={})


def of_others(site: Any, **more: Any) -> Upload:
    """As a client of another make sends it: an index and ATIF documents, no report."""
    rows = [line(0, 0), line(0, 1, 0.0), line(1, 0), line(1, 1, None, error_type="timeout")]
    content = {"index.jsonl": jsonl(rows), "progress.json": b"{}"}
    content |= {f"trajectories/row_{r}_run_{a}.json": json.dumps(ATIF).encode() for r, a in ((0, 0), (0, 1), (1, 0))}
    content["artifacts/row_0_run_1/notes/why.txt"] = b"because"
    content["logs.txt"] = b"first line\nsecond line\n"
    return Upload(site, {**content, **more})


def by_rollout_id(site: Any) -> Upload:
    """The same as the published 0.3.8 client lays it out: the files of a rollout under its id, one name for all."""
    rows = [line(0, 0) | {"trajectory_filename": "trajectory.json"}, line(0, 1, None, error_type="agent_error")]
    content = {"index.jsonl": jsonl(rows), "progress.json": b"{}", "logs.txt": b"one line\n"}
    content["rollout_trials/r-0-0/trajectory.json"] = json.dumps(ATIF).encode()
    content["rollout_trials/r-0-0/artifacts/sub/note.txt"] = b"because"
    return Upload(site, content)


def of_ours(site: Any, values: dict[tuple[int, int], float], **more: Any) -> Upload:
    """As this project's command sends it: whole rollouts, and the engine's report."""
    made = [rollout(row, attempt, value) for (row, attempt), value in values.items()]
    for one in made:
        one.row_key = f"row {one.row_index}"
    index = [line(r.row_index, r.attempt, values[(r.row_index, r.attempt)]) for r in made]
    content = {"index.jsonl": jsonl(index)}
    content |= {f"trajectories/row_{r.row_index}_run_{r.attempt}.json": r.to_line() for r in made}
    content["report.json"] = json.dumps(report(2, 1, completed=len(made)).to_dict()).encode()
    return Upload(site, content, n=1, **more)


@pytest.fixture(scope="module")
def uploaded(shared) -> dict[str, Any]:
    """The answer to the end of an upload by another client, for tests that only look."""
    upload = of_others(shared)
    upload.extra = {"provenance": {"config_path": "configs/eval/multiply.toml"}}
    return dict(upload.run())


def test_a_run_of_another_client_becomes_a_finished_run(shared, uploaded) -> None:
    site, done = shared, uploaded
    assert (done["status"], done["eval_run_name"]) == ("finalized", "nightly")
    assert done["uploaded_files"] == done["expected_files"] == 7
    info = site.json("GET", f"eval-runs/{done['eval_run_id']}")
    assert info["eval_run"]["status"] == "finished"
    assert info["eval_run"]["started_at"] == "2026-01-02T03:04:05+00:00"
    assert info["eval_run"]["progress"] == {"stage": "report", "completed": 4, "total": 4}
    figures = info["results"]
    assert (figures["pass_rate"], figures["passed"], figures["failed"], figures["total_runs"]) == (0.5, 2, 1, 4)
    assert figures["total_tokens"] == 3 * 58 + 30
    assert site.json("GET", "eval-runs")["eval_runs"][0]["name"] == "nightly"
    one = site.json("GET", "eval-runs/nightly/rollouts/0/0")
    assert [m["role"] for m in one["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert one["messages"][1]["tool_calls"][0]["function"] == {"name": "multiply", "arguments": '{"a": 6, "b": 7}'}
    failed = site.json("GET", "eval-runs/nightly/rollouts/1/1")
    assert failed["failure"]["category"] == "timeout"
    assert info["report"]["failures"][0]["rows"] == [1]
    assert {k["k"]: k["value"] for k in info["report"]["scores"][0]["pass_at_k"]} == {1: 0.5}
    assert 0 <= info["report"]["scores"][0]["pass_rate_interval"]["low"] < 0.5


@pytest.mark.usefixtures("uploaded")
def test_its_artifacts_and_log_can_be_downloaded_and_nothing_is_left_of_the_upload(shared) -> None:
    site = shared
    manifest = site.json("GET", "eval-runs/nightly/samples/manifest")
    paths = {file["path"] for file in manifest["files"]}
    assert {"artifacts/row_0_run_1/notes/why.txt", "logs.txt", "trajectories/row_1_run_1.json"} <= paths
    items = [{"path": path} for path in ("artifacts/row_0_run_1/notes/why.txt", "logs.txt")]
    urls = site.json("POST", "eval-runs/nightly/samples/download-urls", json={"items": items})["items"]
    texts = [site.anonymous.get("/" + item["url"].split("/", 3)[3]).text for item in urls]
    assert texts[0] == "because"
    assert texts[1].splitlines()[1].endswith("local: second line")
    assert not any((site.platform.settings.objects_dir / "imports").iterdir())


def test_files_under_the_ids_of_their_rollouts(site) -> None:
    upload = by_rollout_id(site)
    upload.content["rollout_trials/of-no-rollout/artifacts/x.txt"] = b"kept by nobody"
    upload.run()
    one = site.json("GET", "eval-runs/nightly/rollouts/0/0")
    assert [message["role"] for message in one["messages"]] == ["user", "assistant", "tool", "assistant"]
    item = {"items": [{"path": "artifacts/row_0_run_0/sub/note.txt"}]}
    url = site.json("POST", "eval-runs/nightly/samples/download-urls", json=item)["items"][0]["url"]
    assert site.anonymous.get("/" + url.split("/", 3)[3]).text == "because"
    run_id = site.json("GET", "eval-runs/nightly")["eval_run"]["id"]
    folder = site.platform.settings.runs_dir / run_id / "artifacts"
    assert [path.name for path in folder.iterdir()] == ["r-0-0"]


def test_an_interrupted_upload_goes_on_with_what_is_missing(site) -> None:
    upload = of_others(site)
    first = upload.open()
    upload.send(first["session_id"], "index.jsonl")
    early = upload.finalize(first["session_id"], expect=409)
    assert "6 files are missing" in early["message"]
    again = upload.open()
    assert again["session_id"] == first["session_id"]
    assert [file["path"] for file in again["files"] if file["state"] == "uploaded"] == ["index.jsonl"]
    done = upload.run()
    assert upload.finalize(done["session_id"])["eval_run_id"] == done["eval_run_id"]
    assert upload.run()["eval_run_id"] == done["eval_run_id"]
    assert site.json("GET", "eval-runs")["total_count"] == 1


def test_a_run_stays_as_it_is_and_a_changed_one_takes_its_place_only_when_asked(site) -> None:
    first = of_ours(site, {(0, 0): 1.0, (1, 0): 0.0})
    first.content["artifacts/row_0_run_0/a.txt"] = b"old"
    run_id = first.run()["eval_run_id"]
    stored = site.json("GET", "eval-runs/nightly/rollouts/1/0")
    assert stored == json.loads(first.content["trajectories/row_1_run_0.json"])
    assert site.json("GET", "eval-runs/nightly")["report"] == json.loads(first.content["report.json"])
    changed = of_ours(site, {(0, 0): 1.0, (1, 0): 1.0})
    refused = changed.open(expect=409)
    assert refused["eval_run_name"] == "nightly"
    changed.extra = {"reimport": True}
    changed.content["artifacts/row_0_run_0/a.txt"] = b"new"
    done = changed.run()
    assert (done["eval_run_id"], done["eval_run_name"]) == (run_id, "nightly")
    assert site.json("GET", "eval-runs/nightly/rollouts/1/0")["scores"]["reward"]["value"] == 1.0
    item = {"items": [{"path": "artifacts/row_0_run_0/a.txt"}]}
    url = site.json("POST", "eval-runs/nightly/samples/download-urls", json=item)["items"][0]["url"]
    assert site.anonymous.get("/" + url.split("/", 3)[3]).text == "new"
    assert first.open(expect=409)["eval_run_name"] == "nightly", "what was replaced does not come back unasked"


def test_a_log_that_has_grown_since_stops_no_upload(site) -> None:
    """As the published client keeps a resumed run: the digest is of what was run, the log goes on."""
    upload = by_rollout_id(site)
    upload.extra = {"manifest_digest": "d" * 64}
    upload.open()
    upload.content["logs.txt"] += b"resumed\n"
    run_id = upload.run()["eval_run_id"]
    upload.content["logs.txt"] += b"resumed again\n"
    assert upload.run()["eval_run_id"] == run_id
    upload.extra["reimport"] = True
    assert upload.run()["eval_run_id"] == run_id
    assert site.json("GET", "eval-runs")["total_count"] == 1


def test_another_run_of_the_same_name_gets_a_number_and_a_deleted_one_can_come_again(site) -> None:
    of_ours(site, {(0, 0): 1.0, (1, 0): 0.0}).run()
    second = of_ours(site, {(0, 0): 0.0, (1, 0): 0.0}, local_run_id="local-2")
    assert second.run()["eval_run_name"] == "nightly-2"
    site.json("DELETE", "eval-runs/nightly-2", expect=204)
    assert second.run()["eval_run_name"] == "nightly-2"


def test_what_does_not_arrive_as_announced_is_sent_again(site) -> None:
    upload = of_others(site)
    session = upload.open()["session_id"]
    size = len(upload.content["index.jsonl"])
    refused = upload.send(session, "index.jsonl", data=b"x" * size, expect=400)
    assert "does not match the announced size" in refused["message"]
    upload.send(session, "index.jsonl")
    assert upload.open()["uploaded_files"] == 1


@ON_SQLITE
def test_a_large_file_travels_in_parts(site) -> None:
    upload = of_others(site)
    upload.content["artifacts/row_0_run_0/big.bin"] = bytes(range(256)) * 40
    object.__setattr__(site.platform.settings, "part_bytes", 4096)
    upload.run()
    sizes = {f["path"]: f["size"] for f in site.json("GET", "eval-runs/nightly/samples/manifest")["files"]}
    assert sizes["artifacts/row_0_run_0/big.bin"] == 10240


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "/etc/passwd",
        "artifacts/row_0_run_0/../../x",
        "artifacts/row_0_run_0//x",
        "trajectories/a/b.json",
        "trajectories/a.json\n",
        "rollout_trials/../trajectory.json",
        "rollout_trials/../artifacts/x",
        "rollout_trials/r 1/trajectory.json",
        "rollout_trials/r-1/artifacts/../x",
        "rollout_trials/r-1/other/x.json",
        "rollout_trials/r-1/artifacts/a\\b",
        "x.txt",
    ],
)
def test_a_path_that_no_run_has_is_refused(shared, path) -> None:
    upload = of_others(shared)
    upload.content[path] = b"x"
    refused = upload.open(expect=400)
    assert repr(path) in refused["message"]


@pytest.mark.slow
def test_files_that_contradict_each_other_are_refused_and_leave_no_run(site) -> None:
    broken = {
        "line 1: reward": jsonl([line(0, 0, status="success") | {"reward": "much"}]),
        "is listed twice": jsonl([line(0, 0), line(0, 0)]),
        "not part of the upload": jsonl([line(7, 0)]),
        "rollout_id": jsonl([line(0, 0) | {"rollout_id": "../x"}]),
    }
    for number, (words, index) in enumerate(broken.items()):
        content = {
            "index.jsonl": index,
            "progress.json": b"{}",
            "trajectories/row_0_run_0.json": json.dumps(ATIF).encode(),
        }
        upload = Upload(site, content, local_run_id=f"broken-{number}")
        assert words in upload.run(expect=400)["message"]
    counted = of_ours(site, {(0, 0): 1.0})
    counted.content["report.json"] = json.dumps(report(2, 1).to_dict()).encode()
    assert "describes 2 rollouts, but 1 were uploaded" in counted.run(expect=400)["message"]
    assert site.json("GET", "eval-runs")["total_count"] == 0


@pytest.mark.usefixtures("uploaded")
def test_an_uploaded_run_is_retried_where_it_was_made(shared) -> None:
    refused = shared.json("POST", "eval-runs/nightly/retry", expect=409, json={})
    assert refused["local_run"] == {"eval_run_name": "nightly", "config_path": "configs/eval/multiply.toml"}


def test_sessions_over_their_time_are_forgotten_and_interrupted_ends_are_finished(site) -> None:
    stale = of_others(site)
    session = stale.open()["session_id"]
    stale.send(session, "index.jsonl")
    with site.platform.db.write() as db:
        db.execute(sa.update(tables.Import).values(expires_at=utc_now() - timedelta(seconds=1)))
    done = of_ours(site, {(0, 0): 1.0, (1, 0): 0.0}, local_run_id="local-2").run()
    left = sessions.session_folder(site.platform, done["session_id"])
    left.mkdir()
    finished_run.recover(site.platform)
    assert not any((site.platform.settings.objects_dir / "imports").iterdir())
    site.json("GET", f"{BASE}/{session}", expect=404)


@pytest.mark.slow
def test_others_write_while_a_large_run_comes_in_and_nobody_sees_half_of_it(site) -> None:
    count = 30 * finished_run.BATCH
    rows = [line(row, 0, None, error_type="timeout") for row in range(count)]
    upload = Upload(site, {"index.jsonl": jsonl(rows), "progress.json": b"{}"}, n=1)
    over, seen = threading.Event(), []

    def others() -> None:
        while not over.is_set():
            listed = site.json("GET", "eval-runs")["total_count"]
            with site.platform.db.write() as session:
                stored = session.scalar(sa.select(sa.func.count()).select_from(tables.Rollout))
                session.add(tables.SyncEvent(repository_id=repository, branch="b", commit_sha="c"))
            seen.append((stored, listed))

    repository = site.only(sa.select(tables.Repository.id))
    writer = threading.Thread(target=others)
    writer.start()
    try:
        upload.run()
    finally:
        over.set()
        writer.join()
    between = [listed for stored, listed in seen if 0 < stored < count]
    assert between, "somebody wrote while it was half there"
    assert set(between) == {0}
    assert site.json("GET", "eval-runs")["total_count"] == 1
    assert site.only(sa.select(sa.func.count()).select_from(tables.Rollout)) == count


def test_what_a_crash_left_of_a_run_that_nobody_saw_goes(site) -> None:
    kept = add_run(site.platform, site.workspace_id, "young", kind=finished_run.UNSEEN)
    left = add_run(site.platform, site.workspace_id, "old", kind=finished_run.UNSEEN)
    add_rollouts(site.platform, left, [rollout(row, 0) for row in range(3)])
    with site.platform.db.write() as session:
        session.get_one(tables.Run, left).updated_at = utc_now() - timedelta(days=1)
    assert site.json("GET", "eval-runs")["total_count"] == 0
    finished_run.recover(site.platform)
    assert site.stored(sa.select(tables.Run.id)) == [kept]


def test_nobody_else_sees_a_session(site) -> None:
    session = of_others(site).open()["session_id"]
    site.json("POST", "workspaces", json={"name": "other"})
    answer = site.http.get(f"/api/cli/{BASE}/{session}", headers={"X-Osmosis-Workspace": "other"})
    assert answer.status_code == 404
