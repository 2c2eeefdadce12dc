"""`osmosis model`: a folder goes to a platform and comes back, by the commands people type."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import aiohttp
import psutil
import pytest

from osmosis.errors import ValidationError
from osmosis.jobs.kinds.model import LocalModel, LocalServing, serve_here
from support.command_line import CommandRun, run_command
from support.fake_serving import program
from support.model_files import write_adapter, write_model
from support.platform_app import RunningPlatform

Run = Callable[..., CommandRun]


@pytest.fixture
def run(tmp_path: Path, platform: RunningPlatform) -> Run:
    return partial(platform.run, cwd=tmp_path)


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


def serving_processes() -> list[psutil.Process]:
    """What this process started to serve a model, and is still there."""
    found = psutil.Process().children(recursive=True)
    return [one for one in found if any("fake_serving" in word for word in one.cmdline())]


async def test_a_model_answers_whoever_has_the_key_until_it_is_stopped(tmp_path: Path) -> None:
    model = LocalModel("tiny", str(write_model(tmp_path / "tiny")), str(write_adapter(tmp_path / "step-4")))
    stop = asyncio.Event()
    told: asyncio.Future[LocalServing] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve_here(
            model, tmp_path / "cache", {"PATH": "/usr/bin:/bin"}, port=0, log=lambda line: None, ready=told.set_result,
            stop=stop, program=program(),
        )
    )  # fmt: skip
    served = await asyncio.wait_for(told, 60)
    assert len(serving_processes()) > 0
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    async with aiohttp.ClientSession() as session:
        url = f"{served.url}/chat/completions"
        async with session.post(url, json=body, headers={"Authorization": f"Bearer {served.key}"}) as answer:
            said = (await answer.json())["choices"][0]["message"]["content"]
        async with session.post(url, json=body, headers={"Authorization": "Bearer osl_invented"}) as refused:
            assert refused.status == 401
    assert said == "osmosis/tiny (step-4): hi"
    assert served.url.startswith("http://127.0.0.1:")
    stop.set()
    assert await asyncio.wait_for(serving, 60) == 1
    assert serving_processes() == []


def test_what_is_no_model_is_said_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for words, message in (
        (("model", "serve", "tiny", "--adapter", "x"), "there is no folder"),
        (("model", "serve", "empty", "--adapter", "empty"), "holds no adapter"),
    ):
        refused = run_command(*words, "--json", cwd=tmp_path)
        assert refused.code == 1
        assert message in refused.error["message"]
        assert ValidationError.code == refused.error["code"]
