"""What a guest sent is parsed by a process that can be ended: a refusal, and the platform as large as before."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from osmosis.base.git import Git, GitError, sealed_environ
from osmosis.errors import ValidationError
from osmosis.platform import tables
from osmosis.platform.datasets import ingest
from osmosis.platform.git import discovery
from osmosis.platform.objects.parts import upload_key
from osmosis.sandbox.process import Unreadable, read_with
from support.platform_app import RunningPlatform, running_platform

GROWTH = 200 * 1024 * 1024


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("readers") / "data") as running:
        yield running


def bomb(file: Path) -> bytes:
    """A Parquet file of a few kilobytes: 2000 rows of the same 4 MiB of text."""
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array(["x" * (4 << 20)]))
    pq.write_table(pa.table({"user_prompt": column, "ground_truth": column}), file, compression="zstd")
    return file.read_bytes()


def upload(platform: RunningPlatform, name: str, content: bytes, kind: str) -> httpx.Response:
    with httpx.Client(base_url=platform.url, headers=platform.headers, timeout=120) as http:
        said = {"file_name": name, "file_size": len(content), "extension": kind}
        made = http.post("/api/cli/datasets", json=said).json()
        assert http.put(made["upload"]["presigned_url"], content=content).status_code == 200
        return http.post(f"/api/cli/datasets/{made['id']}/complete", json={})


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_a_dataset_that_would_take_all_memory_is_refused(platform: RunningPlatform, tmp_path: Path, kind: str) -> None:
    content = b"[" * 200_000 if kind == "json" else bomb(tmp_path / "bomb.parquet")
    assert len(content) < 1_000_000
    before = psutil.Process().memory_info().rss
    answer = upload(platform, f"bomb-{kind}", content, kind)
    assert answer.status_code == 400, answer.text
    assert "cannot be read" in answer.text
    assert psutil.Process().memory_info().rss < before + GROWTH
    with platform.parts.db.read() as session:
        upload_row = session.scalars(sa.select(tables.Upload).order_by(tables.Upload.created_at.desc())).first()
        assert (upload_row.status, upload_row.attempts) == ("failed", 1)
    assert ingest.recover(platform.parts) == [], "no start reads it again"


def test_a_file_that_ended_the_platform_is_not_read_at_every_start(platform: RunningPlatform) -> None:
    rows = b"".join(b'{"user_prompt": "%d", "ground_truth": "x"}\n' % n for n in range(5))
    assert upload(platform, "killer", rows, "jsonl").status_code == 200
    with platform.parts.db.write() as session:
        dataset = session.scalars(sa.select(tables.Dataset).where(tables.Dataset.name == "killer")).one()
        row = session.scalars(sa.select(tables.Upload).where(tables.Upload.dataset_id == dataset.id)).one()
        row.status, row.attempts = "processing", ingest.MAX_ATTEMPTS
        upload_id = row.id
    platform.parts.settings.located(upload_key(upload_id)).mkdir(parents=True)
    assert ingest.recover(platform.parts) == []
    with platform.parts.db.read() as session:
        assert session.get(tables.Upload, upload_id).status == "failed"


def commit(folder: Path, files: dict[str, str]) -> str:
    def git(*words: str) -> str:
        identity = ["-c", "user.name=T", "-c", "user.email=t@localhost"]
        done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    folder.mkdir()
    git("init", "-q")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git("add", "-A")
    git("commit", "-q", "-m", "x")
    return git("rev-parse", "HEAD")


def test_a_commit_that_is_hard_to_parse_is_still_synced(tmp_path: Path) -> None:
    dotted = "a" + ".a" * 60_000 + " = 1\n"
    head = "[project]\nname = 'x'\ndescription = 'said'\n"
    files = {
        "rollouts/plain/pyproject.toml": head,
        "rollouts/dotted/pyproject.toml": head + dotted,
        "rollouts/deep/pyproject.toml": head + "x = " + "[" * 100_000,
        "rollouts/digits/pyproject.toml": head + "x = " + "9" * 5000,
        "reward_fn/deep.py": "x = " + "(" * 50_000,
        "reward_fn/plain.py": '@osmosis_reward\ndef good():\n    """Well."""\n',
    }
    sha = commit(tmp_path / "repo", files)
    environ = sealed_environ(os.environ)
    before = psutil.Process().memory_info().rss
    found = discovery.discover(discovery.Tree(Git.bare(tmp_path / "repo" / ".git", environ), sha))
    assert psutil.Process().memory_info().rss < before + GROWTH
    assert [one.name for one in found] == ["deep", "digits", "dotted", "plain", "reward_fn.plain:good"]


def test_objects_that_git_would_not_write_are_not_taken_in(tmp_path: Path) -> None:
    commit(tmp_path / "bad", {"a": "b"})
    git = Git.bare(tmp_path / "bad" / ".git", sealed_environ(os.environ))
    blob = git.run("hash-object", "-w", "--stdin", stdin=b"x").decode().strip()
    entry = b"100644 .git\0" + bytes.fromhex(blob)
    tree = git.run("hash-object", "-w", "-t", "tree", "--literally", "--stdin", stdin=entry).decode().strip()
    who = "T <t@localhost> 0 +0000"
    text = f"tree {tree}\nauthor {who}\ncommitter {who}\n\nx\n".encode()
    bad = git.run("hash-object", "-w", "-t", "commit", "--literally", "--stdin", stdin=text).decode().strip()
    git.run("update-ref", "refs/heads/bad", bad)
    environ = sealed_environ(os.environ, settings={"protocol.file.allow": "always"})
    Git.bare(None, environ).run("init", "-q", "--bare", str(tmp_path / "ours"))
    words = ["fetch", "-q", "--", f"file://{tmp_path}/bad", "refs/heads/bad:refs/heads/bad"]
    with pytest.raises(GitError):
        Git.bare(tmp_path / "ours", environ).run(*words)


def test_a_reader_has_limits_and_its_errors_arrive_as_they_are(tmp_path: Path) -> None:
    def script(text: str) -> list[str]:
        (tmp_path / "reader.py").write_text(text)
        return [str(tmp_path / "reader.py")]

    def read(text: str, seconds: float = 20.0) -> object:
        return read_with(script(text), {"a": 1}, what="it", files=[tmp_path], seconds=seconds, memory_mb=200)

    assert read("import sys, json; print(json.dumps([json.load(sys.stdin)]))") == [{"a": 1}]
    for text, says in {
        "x = [b'x' * 2**20 for _ in range(400)]": "more than 200 MB",
        "while True: pass": "more than 2 s",
        "while True: print('x' * 2**20)": "more than can be shown",
        "import os; os.abort()": "cannot be read",
    }.items():
        with pytest.raises(Unreadable, match=says):
            read(text, seconds=1.0 if "2 s" in says else 20.0)
    refusal = "import sys, json; print(json.dumps({'message': 'row 3 is bad', 'status': 400})); sys.exit(3)"
    with pytest.raises(ValidationError, match="row 3 is bad"):
        read(refusal)
    assert json.dumps(read("import os, json; print(json.dumps(sorted(os.environ)))")).count("OSMOSIS") == 0
