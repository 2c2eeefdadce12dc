"""`osmosis model`: a folder goes to a platform and comes back, by the commands people type."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from osmosis.testing.command_line import CommandRun, run_command
from osmosis.testing.model_files import write_model
from osmosis.testing.platform_app import running_platform

pytestmark = pytest.mark.flow
Run = Callable[..., CommandRun]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with running_platform(tmp_path / "data") as platform:
        folders = {f"OSMOSIS_{name}_DIR": str(tmp_path / ".home" / name) for name in ("CONFIG", "DATA", "CACHE")}
        environ = {**folders, "OSMOSIS_PLATFORM_URL": platform.url, "OSMOSIS_TOKEN": platform.token}
        environ["OSMOSIS_TOKEN_PLATFORM_URL"] = platform.url

        def go(*words: str, **more: str) -> CommandRun:
            place = ("--workspace", platform.workspace, "--json")
            return run_command(*words, *place, cwd=tmp_path, environ={**environ, **more})

        yield go


def test_a_model_goes_up_and_comes_back(run: Run, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny")
    (folder / "modeling_custom.py").write_text("raise SystemExit")
    sent = run("model", "upload", "tiny")
    assert sent.code == 0, sent.err
    assert sent.json["message"].startswith("base model tiny is ready: Qwen3ForCausalLM, 0.0 M parameters")
    assert not run("model", "upload", "tiny").json["resource"]["uploaded"]
    assert [row["model_name"] for row in run("model", "list").json["items"]] == ["tiny"]
    assert run("model", "info", "tiny").json["data"]["parameters"] == 1000
    fetched = run("model", "download", "tiny", "-o", "back", "--yes").json["resource"]
    assert (fetched["files"], fetched["files_fetched"]) == (4, 4)
    names = {path.name for path in (tmp_path / "back").iterdir()}
    assert names == {path.name for path in folder.iterdir()} - {"modeling_custom.py"}
    for name in names:
        assert (tmp_path / "back" / name).read_bytes() == (folder / name).read_bytes()
    (tmp_path / "back" / "config.json").write_text("{}")
    assert run("model", "download", "tiny", "-o", "back", "--yes").json["resource"]["files_fetched"] == 1
    assert run("model", "delete", "tiny", "--yes").code == 0
    assert run("model", "info", "tiny").error["code"] == "NOT_FOUND"


def test_a_folder_that_is_no_model_is_not_sent(run: Run, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "tiny")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused = run("model", "upload", "tiny")
    assert refused.code == 1
    assert "weights must be safetensors files; pytorch_model.bin is of another kind" in refused.error["message"]
    assert "save_pretrained" in str(refused.error)
    assert run("model", "list").json["items"] == []


def test_a_model_is_deployed_by_the_commands_people_type(run: Run, tmp_path: Path) -> None:
    write_model(tmp_path / "tiny")
    run("model", "upload", "tiny")
    done = run("model", "deploy", "tiny")
    assert done.code == 0, done.err
    assert done.json["message"] == "model tiny is being loaded"
    resource = done.json["resource"]
    assert (resource["status"], resource["state"], resource["inference_model"]) == ("active", "starting", "tiny")
    step = done.json["next_steps_structured"][1]["command"]
    assert step.startswith(f"curl {resource['inference_url']}/chat/completions -H")
    info = run("model", "info", "tiny", OSMOSIS_INFERENCE_URL="https://inference.example.com").json["data"]
    assert (info["deployment_status"], info["inference_url"]) == ("active", "https://inference.example.com/v1")
    assert run("model", "logs", "tiny").json["items"][0]["message"] == "deployed by local"
    refused = run("model", "delete", "tiny", "--yes")
    assert refused.error["message"] == "model 'tiny' cannot be deleted: it is deployed"
    assert run("model", "undeploy", "tiny").json["resource"]["status"] == "inactive"
    assert run("model", "delete", "tiny", "--yes").code == 0
    assert "osmosis model deploy" in run("deploy", "tiny").err
