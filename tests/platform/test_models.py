"""The model store over the wire: base models file by file, trained ones by name, what a training config may name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from osmosis.client.files import announce_file
from osmosis.platform import tables
from osmosis.platform.models import service as models
from support.model_files import write_adapter, write_model

from .conftest import Site, path_of

EXPERIMENT = {"rollout": "multiply", "entrypoint": "main.py", "model_path": "tiny", "dataset": "sums"}


def announce(site: Site, folder: Path, expect: int = 200, name: str = "tiny", **change: Any) -> dict[str, Any]:
    files = [announce_file(path).to_dict() for path in sorted(folder.iterdir())]
    return site.json("POST", "models/base", expect=expect, json={"name": name, "files": files, **change})


def send(site: Site, model: dict[str, Any], folder: Path, *, most: int = 99) -> int:
    """Send up to `most` parts, as the platform asks for them; how many were sent."""
    sent = 0
    for file in model["files"]:
        while file["state"] == "pending":
            path = {"path": file["path"]}
            plan = site.json("POST", f"models/base/{model['id']}/uploads", json=path)["upload"]
            if not plan["presigned_urls"]:
                site.json("POST", f"models/base/{model['id']}/uploads/complete", json=path)
                break
            for part in plan["presigned_urls"]:
                if sent == most:
                    return sent
                start = (part["part_number"] - 1) * plan["part_size"]
                piece = (folder / file["path"]).read_bytes()[start : start + part["size"]]
                assert site.anonymous.put(path_of(part["presigned_url"]), content=piece).status_code == 200
                sent += 1
    return sent


def upload(site: Site, folder: Path, name: str = "tiny") -> dict[str, Any]:
    model = announce(site, folder, name=name)
    send(site, model, folder)
    return site.json("POST", f"models/base/{model['id']}/finalize", json={})


def checkpoint(site: Site, run_id: str, step: int, reward: float | None = None) -> tables.Checkpoint:
    """A checkpoint as a training job reports it."""
    folder = write_adapter(site.platform.settings.models_dir / "runs" / run_id / f"step-{step}")
    with site.platform.db.write() as session:
        run = session.get_one(tables.Run, run_id)
        row = tables.Checkpoint(
            run_id=run_id, name=f"{run.name}-step-{step}", step=step, status="ready", base_model="tiny",
            path=site.platform.settings.stored(folder), reward=reward,
        )  # fmt: skip
        session.add(row)
    return row


def train(
    site: Site, expect: int = 200, *, advanced: dict[str, Any] | None = None, **experiment: str
) -> dict[str, Any]:
    body = {"experiment_config": {**EXPERIMENT, **experiment}, "advanced_config": advanced or {}}
    return site.json("POST", "training-runs", expect=expect, json=body)


def test_a_base_model_arrives_in_parts_and_says_what_it_is(ready: Site, tmp_path: Path) -> None:
    ready.platform.settings.__dict__["part_bytes"] = 1000
    folder = write_model(tmp_path / "tiny", numbers=1000)
    model = announce(ready, folder)
    assert (model["status"], model["part_size"]) == ("uploading", 1000)
    assert train(ready, expect=400)["issues"][0]["message"] == "base model 'tiny' is not complete"
    send(ready, model, folder, most=4)  # cut off in the middle of the weights
    again = announce(ready, folder)
    assert again["id"] == model["id"]
    states = {file["path"]: (file["state"], file["parts"]) for file in again["files"]}
    assert states["config.json"] == ("uploaded", [])
    assert states["model.safetensors"] == ("pending", [1, 2, 3])
    assert send(ready, again, folder) == 4
    row = ready.json("POST", f"models/base/{model['id']}/finalize", json={})
    assert (row["status"], row["parameters"], row["context_window"]) == ("ready", 1000, 512)
    assert row["architecture"] == "Qwen3ForCausalLM"
    assert ready.json("GET", "models/base")["models"] == [row]
    assert ready.json("GET", "models/base/tiny") == row
    assert announce(ready, folder)["status"] == "ready"


def test_what_arrives_is_what_was_announced(ready: Site, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny")
    model = announce(ready, folder)
    path = {"path": "config.json"}
    place = f"models/base/{model['id']}/uploads"
    part = ready.json("POST", place, json=path)["upload"]["presigned_urls"][0]
    assert ready.anonymous.put(path_of(part["presigned_url"]), content=b"{}").status_code == 400
    other = b"x" * part["size"]
    assert ready.anonymous.put(path_of(part["presigned_url"]), content=other).status_code == 200
    refused = ready.json("POST", f"{place}/complete", expect=400, json=path)
    assert "does not match the announced size or checksum" in refused["message"]
    assert ready.json("POST", f"models/base/{model['id']}/finalize", expect=409, json={})["message"]
    unsigned = path_of(part["presigned_url"]).partition("?")[0]
    assert ready.anonymous.put(f"{unsigned}?expires=9999999999&signature=x", content=other).status_code == 403


def test_what_came_of_other_files_goes_with_their_announcement(ready: Site, tmp_path: Path) -> None:
    ready.platform.settings.__dict__["part_bytes"] = 1000
    first = write_model(tmp_path / "one", numbers=1000)
    model = announce(ready, first)
    assert send(ready, model, first, most=4)
    again = announce(ready, write_model(tmp_path / "two", numbers=50))
    assert again["id"] != model["id"], "nothing that is still sent for the first is taken for the second"
    assert {(file["state"], *file["parts"]) for file in again["files"]} == {("pending",)}
    left = list(ready.platform.objects.list(models.key_of(model["id"])))
    assert left + list(ready.platform.objects.list(models.uploads_key(model["id"]))) == []


def test_a_folder_that_is_no_model_is_not_taken(ready: Site, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny")
    (folder / "model.safetensors").write_bytes(b"no weights at all")
    model = announce(ready, folder)
    send(ready, model, folder)
    refused = ready.json("POST", f"models/base/{model['id']}/finalize", expect=400, json={})
    assert refused["message"] == "model.safetensors is not a complete safetensors file"
    fixed = write_model(tmp_path / "tiny")
    assert upload(ready, fixed)["status"] == "ready"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "../x"}, "is not a name for a model"),
        ({"files": []}, "1 to 500 files"),
        ({"files": [{"path": "../config.json", "size": 1, "sha256": "0" * 64}]}, "not a file of a model"),
        ({"files": [{"path": "code.py", "size": 1, "sha256": "0" * 64}]}, "not a file of a model"),
        ({"files": [{"path": "config.json", "size": 1 << 40, "sha256": "0" * 64}]}, "more than 64 MB"),
        ({"files": [{"path": "model.safetensors", "size": 1 << 60, "sha256": "0" * 64}]}, "disk has"),
    ],
)
def test_what_cannot_be_announced(shared: Site, tmp_path: Path, change: dict[str, Any], words: str) -> None:
    assert words in announce(shared, write_model(tmp_path / "tiny"), expect=400, **change)["message"]


def test_a_name_that_is_taken_is_kept_until_it_is_deleted(ready: Site, tmp_path: Path) -> None:
    upload(ready, write_model(tmp_path / "one"))
    other = write_model(tmp_path / "two", numbers=50)
    assert "already exists, with other files" in announce(ready, other, expect=409)["message"]
    run = train(ready)
    assert "in use by run 'multiply-1'" in ready.json("DELETE", "models/base/tiny", expect=409)["message"]
    ready.json("POST", f"training-runs/{run['id']}/stop", json={})
    ready.json("DELETE", "models/base/tiny", expect=204)
    assert list((ready.platform.settings.models_dir / "base").iterdir()) == []
    assert upload(ready, other)["parameters"] == 50


def test_its_files_can_be_fetched(ready: Site, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny")
    upload(ready, folder)
    for file in ready.json("GET", "models/base/tiny/files")["files"]:
        fetched = ready.anonymous.get(path_of(file["url"]))
        assert fetched.content == (folder / file["path"]).read_bytes()
        assert ready.anonymous.get(path_of(file["url"]).replace("signature=", "signature=0")).status_code == 403


def test_a_checkpoint_is_a_model(ready: Site, tmp_path: Path) -> None:
    upload(ready, write_model(tmp_path / "tiny"))
    run = train(ready)
    for step, reward in ((2, 0.5), (4, 0.75), (6, 0.7)):
        checkpoint(ready, run["id"], step, reward)
    listed = ready.json("GET", "models/lora")["models"]
    assert {row["model_name"] for row in listed} == {f"multiply-1-step-{step}" for step in (2, 4, 6)}
    assert ready.json("GET", "models/multiply-1-step-2")["training_run_name"] == "multiply-1"
    assert ready.json("GET", "models/multiply-1")["model_name"] == "multiply-1-step-4", "the best"
    files = ready.json("GET", "models/multiply-1-step-4/files")
    assert [file["path"] for file in files["files"]] == ["adapter_config.json", "adapter_model.safetensors"]
    assert files["base_model"] == "tiny"
    assert ready.anonymous.get(path_of(files["files"][1]["url"])).status_code == 200
    assert "may resume from it" in ready.json("DELETE", "models/multiply-1-step-2", expect=409)["message"]
    ready.json("POST", f"training-runs/{run['id']}/stop", json={})
    ready.json("DELETE", "models/multiply-1-step-2", expect=204)
    assert ready.anonymous.get(path_of(files["files"][1]["url"])).status_code == 200
    ready.json("GET", "models/multiply-1-step-2", expect=404)
    folder = ready.platform.settings.models_dir / "runs" / run["id"]
    assert sorted(path.name for path in folder.iterdir()) == ["step-4", "step-6"]
    ready.json("DELETE", "training-runs/multiply-1", expect=204)
    assert not folder.exists(), "the checkpoints go with their run"
    assert ready.json("GET", "models/lora")["models"] == []


def test_what_a_training_config_may_name(ready: Site, tmp_path: Path) -> None:
    def resolved(wanted: str) -> str:
        with ready.platform.db.read() as session:
            workspace = session.get_one(tables.Run, run["id"]).workspace_id
            return models.resolve(session, ready.platform.settings, workspace, wanted)

    row = upload(ready, write_model(tmp_path / "tiny"))
    run = train(ready)
    assert resolved("tiny") == str(ready.platform.settings.models_dir / "base" / row["id"])
    assert resolved("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"
    assert "no base model named 'tinny'" in train(ready, expect=400, model_path="tinny")["message"]
    folder = write_model(tmp_path / "allowed" / "mine")
    assert "takes no folders" in train(ready, expect=400, model_path=str(folder))["message"]
    ready.platform.settings.__dict__["model_folders"] = str(tmp_path / "allowed")
    assert resolved(str(folder)) == str(folder)
    assert resolved("./mine") == str(folder)
    write_model(tmp_path / "secret")
    (tmp_path / "allowed" / "link").symlink_to(tmp_path / "secret")
    for path in (str(tmp_path / "secret"), "../secret", str(tmp_path / "allowed" / "link")):
        assert "there is no folder" in train(ready, expect=400, model_path=path)["message"]


def test_what_an_evaluation_may_name(ready: Site, tmp_path: Path) -> None:
    def evaluate(model: str, expect: int = 200) -> dict[str, Any]:
        body = {"experiment_config": {**EXPERIMENT, "model_path": model}, "evaluation_config": {"limit": 4}}
        return ready.json("POST", "eval-runs", expect=expect, json=body)

    def served(model: str) -> models.Served:
        with ready.platform.db.read() as session:
            workspace = session.get_one(tables.Run, run["id"]).workspace_id
            return models.resolve_served(session, ready.platform.settings, workspace, model)

    row = upload(ready, write_model(tmp_path / "tiny"))
    run = train(ready)
    for step, reward in ((2, 0.75), (4, 0.5)):
        checkpoint(ready, run["id"], step, reward)
    base = str(ready.platform.settings.models_dir / "base" / row["id"])
    adapters = ready.platform.settings.models_dir / "runs" / run["id"]
    assert served("osmosis/tiny") == models.Served(base)
    assert served("osmosis/multiply-1-step-4") == models.Served(base, str(adapters / "step-4"))
    assert served("osmosis/multiply-1") == models.Served(base, str(adapters / "step-2")), "the best"
    for name in ("osmosis/tiny", "osmosis/multiply-1"):
        assert evaluate(name)["status"] == "pending"
    refused = evaluate("osmosis/nothing", expect=400)
    assert refused["issues"][0]["key"] == "experiment.model_path"
    assert "no model named 'nothing'" in refused["message"]
