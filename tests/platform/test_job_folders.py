"""What a training job on another machine has of the platform's disk: the base model, and checkpoints both ways."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from osmosis.platform import tables
from osmosis.platform.models import service as models
from osmosis.platform.scheduling import job_files, queue
from osmosis.records.run.training import MANIFEST, describe_files
from support.model_files import write_adapter, write_model
from support.platform_data import a_worker

from .conftest import Site
from .test_jobs_api import rollout
from .test_models import train, upload
from .test_workers import Box, submit, worker_token

FINGERPRINT = "f" * 64


class Machine:
    """A job of a training run on a machine with a disk of its own."""

    def __init__(self, site: Site, folder: Path, advanced: dict[str, Any] | None = None) -> None:
        self.site, self.folder = site, folder
        upload(site, write_model(folder / "base", numbers=100))
        self.run = train(site, advanced=advanced)
        self.box = Box(site, worker_token(site), kinds=["eval", "training"])
        self.order = self.box.claim()

    def ask(self, method: str, path: str, expect: int = 200, **more: Any) -> Any:
        return self.box.of_job(method, self.order, path, expect, **more)

    def folders(self) -> dict[str, dict[str, str]]:
        found = self.ask("GET", "folders").json()["folders"]
        return {one["name"]: {file["path"]: file["sha256"] for file in one["files"]} for one in found}

    def saved(self, step: int, **manifest: Any) -> Path:
        """A checkpoint on its own disk."""
        folder = write_adapter(self.folder / "own" / f"step-{step:06d}")
        told = {
            "run": self.run["name"], "step": step, "kind": "regular", "method": "grpo", "fingerprint": FINGERPRINT,
            "base_model": "tiny", "created_at": "2026-01-01T00:00:00Z", "versions": {}, "reward": step / 10,
            "files": [one.to_dict() for one in describe_files(folder)],
        }  # fmt: skip
        (folder / MANIFEST).write_text(json.dumps({**told, **manifest}))
        return folder

    def send(self, folder: Path) -> None:
        for path in folder.iterdir():
            where = f"checkpoints/{folder.name}/{path.name}?size={path.stat().st_size}"
            assert self.ask("PUT", where, content=path.read_bytes()).json() == {"complete": True}

    def report(self, step: int, expect: int = 200, **more: Any) -> Any:
        told = {"step": step, "path": f"step-{step:06d}", **more}
        return self.ask("POST", "checkpoints", expect, json={"checkpoints": [told]}).json()

    @property
    def kept(self) -> list[str]:
        folder = self.site.platform.settings.models_dir / "runs" / str(self.run["id"])
        return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def machine(ready: Site, tmp_path: Path) -> Machine:
    return Machine(ready, tmp_path)


def test_a_job_elsewhere_is_told_no_place_of_ours(machine: Machine) -> None:
    spec = machine.ask("GET", "spec").json()
    assert spec["folders"] == ["model"]
    assert not [key for key in ("model_path", "models_dir", "repository", "dataset_path") if spec.get(key)]
    assert str(machine.site.platform.settings.data_dir) not in json.dumps(spec)


def test_a_teacher_comes_as_the_base_model_does(ready: Site, tmp_path: Path) -> None:
    upload(ready, write_model(tmp_path / "large", numbers=200), "large")
    machine = Machine(ready, tmp_path, {"loss": "distill", "teacher": "large"})
    refused = train(ready, expect=400, advanced={"loss": "distill", "teacher": "nowhere"})["issues"]
    assert [issue["key"] for issue in refused] == ["advanced.teacher"]
    assert machine.ask("GET", "spec").json()["folders"] == ["model", "teacher"]
    content = machine.ask("GET", "folders/teacher/model.safetensors").content
    assert content == (tmp_path / "large" / "model.safetensors").read_bytes()


def test_a_run_goes_on_from_the_adapter_of_another(machine: Machine) -> None:
    site, saved = machine.site, machine.saved(2)
    machine.send(saved)
    machine.report(2, reward=0.5)
    refused = train(site, expect=400, model_path="multiply-1", advanced={"lora_rank": 8, "tune": "full"})["issues"]
    assert {issue["key"]: issue["message"] for issue in refused} == {
        "advanced.lora_rank": "lora_rank is 8, and the adapter that training goes on from has 4",
        "advanced.tune": "tune is 'full', and the adapter that training goes on from has 'lora'",
    }
    machine.run = train(site, model_path="multiply-1", advanced={"lora_rank": 4})
    machine.box = Box(site, worker_token(site), kinds=["training"])
    machine.order = machine.box.claim()
    spec = machine.ask("GET", "spec").json()
    assert spec["folders"] == ["adapter", "model"]
    assert spec["config"]["experiment"]["model_path"] == "multiply-1-step-2"
    content = machine.ask("GET", "folders/adapter/adapter_model.safetensors").content
    assert content == (saved / "adapter_model.safetensors").read_bytes()
    machine.ask("GET", "folders/adapter/optimizer.pt", 404)
    machine.send(machine.saved(4))
    machine.report(4)
    with site.platform.db.read() as session:
        run = session.get_one(tables.Run, machine.run["id"])
        served = models.resolve_served(session, site.platform.settings, run.workspace_id, "osmosis/multiply-2")
        base = models.find_trained(session, run.workspace_id, "multiply-2").base_model
    assert (base, Path(served.adapter).name) == ("tiny", "step-000004")


def test_the_base_model_comes_file_by_file_and_goes_on_after_a_cut(machine: Machine) -> None:
    base = machine.folder / "base"
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in base.iterdir()}
    assert machine.folders() == {"model": sums}
    whole = (base / "model.safetensors").read_bytes()
    rest = machine.ask("GET", "folders/model/model.safetensors", 206, headers={"Range": "bytes=10-"})
    assert rest.content == whole[10:]


def test_only_what_is_listed_can_be_had(machine: Machine) -> None:
    for path in ("model/%2e%2e/%2e%2e/platform.db", "model/nothing", "step-000002/manifest.json", "other/x"):
        machine.ask("GET", f"folders/{path}", 404)


def test_a_checkpoint_comes_in_pieces_and_is_one_when_it_is_whole(machine: Machine) -> None:
    folder = machine.saved(2)
    weights = (folder / "adapter_model.safetensors").read_bytes()
    where = f"checkpoints/{folder.name}/adapter_model.safetensors?size={len(weights)}"
    assert machine.ask("PUT", where, content=weights[:5]).json() == {"complete": False}
    assert machine.ask("GET", f"checkpoints/{folder.name}").json() == {"files": {"adapter_model.safetensors": 5}}
    machine.ask("PUT", f"{where}&offset=7", 409, content=weights[7:])
    assert machine.ask("PUT", f"{where}&offset=5", content=weights[5:]).json() == {"complete": True}
    assert "no manifest.json" in machine.report(2, 400)["message"]
    machine.send(folder)
    assert machine.report(2, reward=0.5) == {"stored": 1}
    assert machine.report(2, reward=0.5) == {"stored": 0}, "a repeated message"
    there = machine.ask("GET", f"checkpoints/{folder.name}").json()["files"]
    assert there == {path.name: path.stat().st_size for path in folder.iterdir()}, "nothing is sent again"
    listed = machine.site.json("GET", "training-runs/multiply-1/checkpoints")["checkpoints"]
    assert [checkpoint["checkpoint_step"] for checkpoint in listed] == [2]
    assert machine.folders()[folder.name].keys() == there.keys()
    got = machine.ask("GET", f"folders/{folder.name}/adapter_model.safetensors").content
    assert got == weights


def test_a_checkpoint_that_differs_from_its_manifest_is_none(machine: Machine) -> None:
    folder = machine.saved(2)
    (folder / "adapter_config.json").write_bytes(b"x" * (folder / "adapter_config.json").stat().st_size)
    machine.send(folder)
    assert "the content of adapter_config.json changed" in machine.report(2, 400)["message"]
    assert machine.ask("GET", f"checkpoints/{folder.name}").json() == {"files": {}}, "it can be sent again"


def test_files_that_no_manifest_names_and_other_runs_are_refused(machine: Machine) -> None:
    folder = machine.saved(2)
    (folder / "more.py").write_text("print()")
    machine.send(folder)
    assert "more.py" in machine.report(2, 400)["message"]
    machine.send(machine.saved(4, run="another"))
    assert "another run or step" in machine.report(4, 400)["message"]


ELSEWHERE = ("step-2/x", "base/x", "step-000002/%2e%2e/x", "step-000002/x.part", "step-000002/a/b/c/d/e", "%2e%2e/x")


def test_names_that_lead_elsewhere_are_refused(machine: Machine) -> None:
    headers = {"Authorization": f"Bearer {machine.order['lease']}"}
    for name in ELSEWHERE:
        url = f"/api/jobs/{machine.run['id']}/checkpoints/{name}?size=1"
        answer = machine.box.http.put(url, content=b"x", headers=headers)
        assert answer.status_code in (400, 404, 405), f"{name}: {answer.text}"


def test_a_path_of_our_disk_is_not_a_jobs_to_name(machine: Machine) -> None:
    path = str(machine.site.platform.settings.models_dir / "runs" / str(machine.run["id"]) / "step-000002")
    refused = machine.ask("POST", "checkpoints", 400, json={"checkpoints": [{"step": 2, "path": path}]}).json()
    assert "not the name of a checkpoint" in refused["message"]


def test_more_than_was_announced_or_may_be_is_refused(machine: Machine) -> None:
    machine.ask("PUT", "checkpoints/step-000002/x?size=1", 413, content=b"xx")
    machine.ask("PUT", f"checkpoints/step-000002/x?size={job_files.MOST_BYTES + 1}", 413, content=b"x")


def test_what_a_trainer_elsewhere_removed_goes_here_too(machine: Machine) -> None:
    for step in (2, 4):
        machine.send(machine.saved(step))
        machine.report(step)
    assert machine.kept == ["step-000002", "step-000004"]
    machine.send(machine.saved(6))
    machine.report(6, removed=["step-000002"])
    assert machine.kept == ["step-000004", "step-000006"]


def test_a_run_that_goes_back_forgets_what_came_after(machine: Machine) -> None:
    keys = [(1, 0), (2, 0), (3, 0)]
    bodies = [{**rollout(0, attempt), "step": step} for step, attempt in keys]
    machine.ask("POST", "rollouts", json={"rollouts": bodies})
    points = [{"key": "rollout/raw_reward", "step": step, "value": 1.0} for step in (1, 2, 3)]
    points += [{"key": "rollout/waiting_groups", "step": step, "value": 2.0 * step} for step in (1, 2, 3)]
    machine.ask("POST", "metrics", json={"points": points})
    assert machine.ask("POST", "rewind", json={"step": 1}).json() == {"stored": 2}
    assert [key[0] for key in machine.ask("GET", "rollouts").json()["keys"]] == [1]
    curves = machine.site.json("GET", "training-runs/multiply-1/metrics")["metrics"]
    assert [[point["step"] for point in curve["data_points"]] for curve in curves] == [[1], [1]]
    log = machine.site.json("GET", "training-runs/multiply-1/logs")["logs"]
    assert "2 groups that waited for a later step are lost" in log[-1]["message"]
    again = {**bodies[2], "rollout_id": "again"}
    assert machine.ask("POST", "rollouts", json={"rollouts": [again]}).json() == {"stored": 1}


def test_an_evaluation_has_none_of_this(ready: Site) -> None:
    submit(ready)
    box = Box(ready, worker_token(ready))
    order = box.claim()
    for path in ("folders", "checkpoints/step-000002"):
        box.of_job("GET", order, path, 409)


def test_a_lost_lease_opens_nothing(machine: Machine) -> None:
    machine.order["lease"] = "osj_guess"
    for method, path in (("GET", "folders"), ("GET", "folders/model/config.json"), ("GET", "checkpoints/step-000002")):
        machine.ask(method, path, 409)
    machine.ask("PUT", "checkpoints/step-000002/x?size=1", 409, content=b"x")
    machine.ask("POST", "rewind", 409, json={"step": 0})


def test_a_run_that_no_worker_does_says_so(ready: Site) -> None:
    Box(ready, worker_token(ready), kinds=["eval"])
    run = train(ready, model_path="Qwen/Qwen3-0.6B")
    told = ready.json("GET", f"training-runs/{run['id']}")["training_run"]
    assert "none of 1 does training runs (box)" in (told.get("progress") or {}).get("stage", "")


def test_a_job_beside_us_is_told_the_places(ready: Site, tmp_path: Path) -> None:
    upload(ready, write_model(tmp_path / "base", numbers=100))
    run = train(ready)
    with ready.platform.db.write() as session:
        token = queue.claim(session, a_worker(session), 60).token  # type: ignore[union-attr]
    answer = ready.anonymous.get(f"/api/jobs/{run['id']}/spec", headers={"Authorization": f"Bearer {token}"}).json()
    assert answer["models_dir"].endswith(str(run["id"]))
    assert "folders" not in answer or not answer["folders"]
    assert ready.row(tables.Run, run["id"]).status == "running"
