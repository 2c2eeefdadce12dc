"""Objects in a bucket: they travel by presigned addresses, copies come and go, and what breaks is said.

moto's server checks no signatures; that an address is refused without one, or after its time, is not shown here.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from obstore.store import S3Store

from osmosis.errors import NetworkError, NotFound, PlatformError, UsageError, ValidationError
from osmosis.platform import Platform
from osmosis.platform.backup import create, restore
from osmosis.platform.maintenance import doctor, gc
from osmosis.platform.objects import open_objects
from osmosis.platform.objects.publish import publish
from osmosis.platform.objects.s3 import S3Objects
from osmosis.platform.settings import PlatformSettings
from support.bucket import Bucket, bucket
from support.platform_process import PlatformProcess, until

pytestmark = pytest.mark.slow

MB = 1024 * 1024


@pytest.fixture(scope="module")
def server() -> Iterator[Bucket]:
    with bucket() as made:
        yield made


@pytest.fixture
def settings(server: Bucket, tmp_path: Path) -> PlatformSettings:
    return _settings(server, tmp_path / "data", tmp_path.name)


def _settings(server: Bucket, folder: Path, prefix: str, endpoint: str = "") -> PlatformSettings:
    environ = {"PATH": os.environ["PATH"], **server.environ(prefix, endpoint=endpoint)}
    return PlatformSettings(data_dir=folder, worker=False, environ=environ)


@pytest.fixture
def objects(settings: PlatformSettings) -> S3Objects:
    made = open_objects(settings)
    assert isinstance(made, S3Objects)
    return made


def a_file(folder: Path, content: bytes) -> Path:
    path = folder / "source"
    path.write_bytes(content)
    return path


def test_put_open_list_fetch_and_delete(objects: S3Objects, settings: PlatformSettings, tmp_path: Path) -> None:
    content = os.urandom(20 * MB + 7)  # three parts
    objects.put("objects/datasets/a/1.jsonl", a_file(tmp_path, content))
    objects.put("objects/datasets/a/ü 2.jsonl", a_file(tmp_path, b"second"))
    assert [(one.key, one.size) for one in objects.list("objects/datasets/a/")] == [
        ("objects/datasets/a/1.jsonl", len(content)),
        ("objects/datasets/a/ü 2.jsonl", 6),
    ]
    assert b"".join(objects.open("objects/datasets/a/1.jsonl", offset=MB).pieces) == content[MB:]
    assert b"".join(objects.open("objects/datasets/a/1.jsonl", offset=len(content)).pieces) == b""
    copy = objects.fetch("objects/datasets/a/1.jsonl")
    assert copy == settings.data_dir / "objects/datasets/a/1.jsonl"
    assert copy.read_bytes() == content
    objects.delete("objects/datasets/a/")
    assert not copy.exists()
    assert list(objects.list("objects/datasets/a/")) == []
    with pytest.raises(NotFound):
        objects.open("objects/datasets/a/1.jsonl")
    for odd in ("objects/../../etc/passwd", "objects", "/etc/passwd"):
        with pytest.raises(NotFound):
            objects.put(odd, a_file(tmp_path, b"x"))


def test_what_was_changed_in_the_store_is_not_taken_for_what_was_put(
    server: Bucket, objects: S3Objects, tmp_path: Path
) -> None:
    objects.put("models/base/m/config.json", a_file(tmp_path, b"right"))
    store = S3Store(
        "osmosis-test", prefix=tmp_path.name, endpoint=server.endpoint, access_key_id="a", secret_access_key="b",
        client_options={"allow_http": True},
    )  # fmt: skip
    digest = store.get("models/base/m/config.json").attributes["sha256"]
    store.put("models/base/m/config.json", b"wrong", attributes={"sha256": digest})
    with pytest.raises(PlatformError, match="damaged"):
        objects.fetch("models/base/m/config.json")
    assert not (tmp_path / "data/models/base/m/config.json").exists()


class Cutting:
    """A door to the server that closes for good after so many bytes."""

    def __init__(self, endpoint: str, after: int) -> None:
        host, _, port = endpoint.removeprefix("http://").partition(":")
        self._target, self.left = (host, int(port)), after
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self.left <= 0:
                near.close()
                continue
            far = socket.create_connection(self._target)
            for source, sink, counted in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._pass, args=(source, sink, counted), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        try:
            while piece := source.recv(65536):
                if counted:
                    self.left -= len(piece)
                    if self.left <= 0:
                        break
                sink.sendall(piece)
        except OSError:
            pass
        for one in (source, sink):
            one.close()

    def close(self) -> None:
        self._listener.close()


def test_a_cut_in_the_middle_of_a_large_object_leaves_nothing_that_counts(
    server: Bucket, objects: S3Objects, tmp_path: Path
) -> None:
    content = os.urandom(24 * MB)
    door = Cutting(server.endpoint, after=12 * MB)
    through = open_objects(_settings(server, tmp_path / "data", tmp_path.name, endpoint=door.endpoint))
    try:
        with pytest.raises(NetworkError, match=r"does not answer as it should"):
            through.put("models/runs/r/step-1/adapter_model.safetensors", a_file(tmp_path, content))
    finally:
        door.close()
    assert list(objects.list("models/runs/")) == []
    objects.put("models/runs/r/step-1/adapter_model.safetensors", a_file(tmp_path, content))
    assert objects.fetch("models/runs/r/step-1/adapter_model.safetensors").read_bytes() == content


def test_credentials_that_the_store_refuses_are_said_and_no_secret_with_them(tmp_path: Path) -> None:
    with bucket(strict=True) as server:
        settings = _settings(server, tmp_path / "data", "p")
        with pytest.raises(NetworkError, match=r"refuses the platform \(InvalidAccessKeyId") as raised:
            open_objects(settings).put("objects/datasets/a/1.jsonl", a_file(tmp_path, b"x"))
        assert "AWS_ACCESS_KEY_ID" in (raised.value.hint or "")
        assert "test-secret" not in str(raised.value) + str(raised.value.hint)
        settings.data_dir.mkdir()
        found = {problem.code: problem for problem in doctor.find_problems(settings)}
        assert "refuses the platform" in found["objects"].what


def test_a_bucket_that_is_not_there_and_a_server_that_is_not(server: Bucket, tmp_path: Path) -> None:
    environ = dict(server.environ("p"))
    gone = PlatformSettings(data_dir=tmp_path, environ={**environ, "OSMOSIS_OBJECTS": "s3://no-such-bucket"})
    with pytest.raises(NetworkError, match="there is no bucket no-such-bucket"):
        open_objects(gone).put("objects/datasets/a/1", a_file(tmp_path, b"x"))
    with pytest.raises(ValidationError, match="s3://BUCKET"):
        PlatformSettings(data_dir=tmp_path, environ={"OSMOSIS_OBJECTS": "https://bucket"})
    silent = PlatformSettings(data_dir=tmp_path, environ={**environ, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
    with pytest.raises(NetworkError, match=r"http://127.0.0.1:9 does not answer"):
        open_objects(silent).put("objects/datasets/a/1", a_file(tmp_path, b"x"))
    half = PlatformSettings(data_dir=tmp_path, environ={**environ, "AWS_SECRET_ACCESS_KEY": ""})
    with pytest.raises((NetworkError, UsageError), match="SecretAccessKey"):
        open_objects(half)


def test_the_doctor_is_content_with_a_store_that_works(settings: PlatformSettings, objects: S3Objects) -> None:
    settings.data_dir.mkdir()
    assert "objects" not in {problem.code for problem in doctor.find_problems(settings)}
    assert list(objects.list("objects/")) == []


def test_what_was_on_the_disk_goes_to_the_store_and_what_a_job_linked_does_not(
    settings: PlatformSettings, objects: S3Objects, tmp_path: Path
) -> None:
    root, secret = settings.data_dir, tmp_path / "secret"
    secret.write_text("not yours")
    for name in ("objects/datasets/d/1.jsonl", "runs/r/artifacts/x/artifacts/a.txt", "runs/r/job.log"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "runs/r/artifacts/x/artifacts/link").symlink_to(secret)
    os.link(secret, root / "runs/r/artifacts/x/artifacts/second-name")
    assert publish(objects, root, "objects/", "models/", "runs/") == 2
    assert publish(objects, root, "objects/", "models/", "runs/") == 0
    stored = [one.key for one in objects.list("objects/")] + [one.key for one in objects.list("runs/")]
    assert stored == ["objects/datasets/d/1.jsonl", "runs/r/artifacts/x/artifacts/a.txt"]


@pytest.fixture
def process(server: Bucket, tmp_path: Path) -> Iterator[PlatformProcess]:
    made = PlatformProcess(tmp_path / "data", environ={**os.environ, **server.environ(tmp_path.name)})
    made.start()
    made.login()
    yield made
    made.end()


def test_an_evaluation_whose_dataset_is_in_the_bucket_alone(process: PlatformProcess, tmp_path: Path) -> None:
    process.prepare(tmp_path / "checkout")
    home = process.data_dir / "objects" / "datasets"
    assert any(home.rglob("*.jsonl")), "the platform has read it"
    shutil.rmtree(home)  # another machine, or a disk that was cleared
    name = process.submit()
    until(lambda: process.run(name)["status"] not in ("pending", "running"), "the run ends")
    assert process.run(name)["status"] == "finished"

    link = process.json("GET", "datasets/sums/download")
    assert link["presigned_url"].startswith(process.environ["AWS_ENDPOINT_URL"])
    lines = httpx.get(link["presigned_url"], trust_env=False).text.splitlines()
    assert len(lines) == 12
    process.http.delete("/api/cli/eval-runs/" + name).raise_for_status()
    process.http.delete("/api/cli/datasets/sums").raise_for_status()
    assert httpx.get(link["presigned_url"], trust_env=False).status_code == 404


def test_artifacts_are_fetched_from_the_bucket_and_survive_a_backup(
    process: PlatformProcess, server: Bucket, tmp_path: Path
) -> None:
    process.prepare(tmp_path / "checkout")
    name = process.submit()
    until(lambda: process.run(name)["status"] == "finished", "the run ends")
    run_id = process.run(name)["id"]
    rollout = process.json("GET", f"eval-runs/{name}/rollouts")["rollouts"][0]
    left = process.data_dir / "runs" / run_id / "artifacts" / rollout["rollout_id"] / "artifacts" / "notes.txt"
    left.parent.mkdir(parents=True)
    left.write_text("what the rollout left")
    process.terminate()
    process.start()  # which sends what is not in the store yet
    settings = _settings(server, process.data_dir, tmp_path.name)
    objects = open_objects(settings)
    until(lambda: list(objects.list(f"runs/{run_id}/")), "the artifact is stored")
    shutil.rmtree(left.parent)

    listed = process.json("GET", f"eval-runs/{name}/samples/manifest?types=artifacts")["files"]
    assert [(one["size"], one["path"].rpartition("/")[2]) for one in listed] == [(21, "notes.txt")]
    wanted = {"items": [{"path": listed[0]["path"]}]}
    address = process.json("POST", f"eval-runs/{name}/samples/download-urls", json=wanted)["items"][0]["url"]
    assert address.startswith(server.endpoint)
    assert httpx.get(address, trust_env=False).text == "what the rollout left"

    create.create_backup(settings, tmp_path / "all.tar", with_master_key=True)
    process.terminate()
    elsewhere = _settings(server, tmp_path / "elsewhere", f"{tmp_path.name}-again")
    restore.restore(elsewhere, tmp_path / "all.tar")
    found = {
        one.key.removeprefix(f"runs/{run_id}/artifacts/"): one.size for one in open_objects(elsewhere).list("runs/")
    }
    assert found == {f"{rollout['rollout_id']}/artifacts/notes.txt": 21}
    assert len(list(open_objects(elsewhere).list("objects/datasets/"))) == 1
    with pytest.raises(Exception, match="is in use"):
        restore.restore(_settings(server, tmp_path / "third", f"{tmp_path.name}-again"), tmp_path / "all.tar")


def test_copies_that_nobody_used_go_and_objects_without_a_row(settings: PlatformSettings, tmp_path: Path) -> None:
    platform = Platform.open(settings)
    root, long_ago = settings.data_dir, time.time() - 30 * 24 * 3600
    (root / "objects/imports/gone").mkdir(parents=True)
    for name in ("models/base/m/config.json", "models/base/m/unsent.json"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(json.dumps(name))
        if "unsent" not in name:
            platform.objects.put(name, root / name)
        os.utime(root / name, (long_ago, long_ago))
    assert [waste.what for waste in gc.sweep(platform) if waste.kind == "copies"] == ["models/base/m/config.json"]
    assert not (root / "models/base/m/config.json").exists()
    assert platform.objects.fetch("models/base/m/config.json").read_text() == '"models/base/m/config.json"'
    platform.db.close()
