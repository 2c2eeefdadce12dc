"""A model is deployed, asked as OpenAI clients ask, outlives its process and its platform, and is undeployed.

All processes are real, but for the model: it says what it was asked (`support/fake_serving.py`).
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from osmosis.base.jsonable import JsonObject
from osmosis.client.files import announce_file
from osmosis.llm import ChatRequest, Piece, open_model
from osmosis.records.run.plan import ModelSpec
from osmosis.serve.client.program_agent import load_harnesses
from support import RUN
from support.agent_programs import write_stand_ins
from support.command_line import run_command
from support.model_files import write_model
from support.platform_process import PlatformProcess, until

pytestmark = pytest.mark.slow
JOB = " ".join((*RUN, "fake_training_job"))


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    """With a model that can be served, and one that cannot."""
    folder = tmp_path_factory.mktemp("platform")
    process = PlatformProcess(folder / "data", job_command=JOB)
    process.start()
    process.login()
    for name in ("tiny", "broken"):
        upload(process, write_model(folder / name))
    yield process
    process.terminate()


@pytest.fixture
def served(platform: PlatformProcess) -> Iterator[PlatformProcess]:
    """`tiny` is served."""
    platform.json("POST", "models/tiny/deploy", json={})
    until(lambda: state(platform, "tiny") == "serving", "the model is served")
    yield platform
    platform.json("POST", "models/tiny/undeploy", json={})
    until(lambda: state(platform, "tiny") == "stopped", "the deployment has ended")


def upload(platform: PlatformProcess, folder: Path) -> None:
    files = [announce_file(path) for path in sorted(folder.iterdir())]
    body = {"name": folder.name, "files": [file.to_dict() for file in files]}
    model = platform.json("POST", "models/base", json=body)
    for file in files:
        path = {"path": file.path}
        plan = platform.json("POST", f"models/base/{model['id']}/uploads", json=path)["upload"]
        for part in plan["presigned_urls"]:
            platform.http.put(part["presigned_url"], content=(folder / file.path).read_bytes())
        platform.json("POST", f"models/base/{model['id']}/uploads/complete", json=path)
    platform.json("POST", f"models/base/{model['id']}/finalize", json={})


def state(platform: PlatformProcess, name: str) -> str:
    return str(platform.json("GET", f"models/base/{name}").get("deployment_state"))


def ask(platform: PlatformProcess, content: str, model: str = "tiny", **more: object) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": content}], **more}
    headers = {"Authorization": platform.http.headers["Authorization"]}
    return httpx.post(f"http://127.0.0.1:{platform.port}/v1/chat/completions", json=body, headers=headers, timeout=60)


def said(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def error(answer: httpx.Response) -> tuple[int, str, str]:
    found: JsonObject = answer.json()["error"]
    return answer.status_code, found["code"], found["message"]


def serving_process(platform: PlatformProcess) -> psutil.Process:
    """The one that has the model."""
    for one in psutil.process_iter(["cmdline"]):
        words = one.info["cmdline"] or []
        if "tests.support.fake_serving" in words and any(str(platform.data_dir) in word for word in words):
            return one
    raise AssertionError("no model is served")


def test_a_model_is_deployed_asked_and_undeployed(platform: PlatformProcess) -> None:
    not_yet = "model 'tiny' is not deployed: osmosis model deploy tiny"
    assert error(ask(platform, "hi")) == (404, "model_not_deployed", not_yet)
    made = platform.json("POST", "models/tiny/deploy", json={})
    assert (made["model_name"], made["status"], made["state"]) == ("tiny", "active", "starting")
    until(lambda: state(platform, "tiny") == "serving", "the model is served")
    assert said(ask(platform, "hi")) == "osmosis/tiny (base): hi"
    assert said(ask(platform, "hi", model="osmosis/tiny")) == "osmosis/tiny (base): hi"
    unknown = "no model named 'tinny': did you mean tiny?"
    assert error(ask(platform, "hi", model="tinny")) == (404, "model_not_found", unknown)
    assert error(ask(platform, "hi", best_of=3))[:2] == (400, "bad_request")
    assert platform.http.get("/v1/models").json()["data"][0]["id"] == "tiny"
    assert httpx.get(f"http://127.0.0.1:{platform.port}/v1/models").status_code == 401
    listed = platform.json("GET", "deployments")
    assert (listed["deployments"][0]["model_name"], listed["active_deployments"]) == ("tiny", 1)

    def is_logged() -> bool:
        log = platform.json("GET", "models/tiny/logs?limit=200")["logs"]
        return any(line["message"] == "serving tiny" for line in log)

    until(is_logged, "the job's log, which comes in batches, is stored")
    model = serving_process(platform)
    gone = platform.json("POST", "models/tiny/undeploy", json={})
    assert (gone["status"], gone["state"]) == ("inactive", "stopping")
    assert error(ask(platform, "hi"))[:2] == (404, "model_not_deployed")
    until(lambda: state(platform, "tiny") == "stopped", "the deployment has ended")
    until(lambda: not psutil.pid_exists(model.pid), "its process is gone")


def test_it_outlives_its_process_and_its_platform(served: PlatformProcess) -> None:
    serving_process(served).kill()  # the job starts it again, and whoever asks meanwhile waits
    assert said(ask(served, "again")) == "osmosis/tiny (base): again"
    served.kill()
    served.start()  # the job lives on, and the new platform finds it
    until(lambda: ask(served, "still there?").status_code == 200, "it answers after the platform was killed")
    assert served.terminate() == 0
    served.start()  # this time the job was ended with its platform, and comes back with it
    until(lambda: ask(served, "back?").status_code == 200, "it answers after the platform was stopped")


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_google_clients_ask_a_deployment(served: PlatformProcess, streamed: bool) -> None:
    genai = pytest.importorskip("google.genai", reason="google-genai needs Python 3.11")
    client = genai.Client(api_key=served.token, http_options={"base_url": served.url}).aio
    assert "models/tiny" in [model.name async for model in await client.models.list()]
    arguments = {"model": "osmosis/tiny", "contents": "hello"}
    if streamed:
        pieces = [piece.text async for piece in await client.models.generate_content_stream(**arguments)]
        assert len(pieces) > 3
    else:
        pieces = [(await client.models.generate_content(**arguments)).text]
    assert "".join(pieces) == "osmosis/tiny (base): hello"
    assert (await client.models.count_tokens(**arguments)).total_tokens > 2


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", ["anthropic/tiny", "openai/responses/tiny"])
async def test_our_own_client_asks_a_deployment(served: PlatformProcess, name: str, streamed: bool) -> None:
    base_url = served.url if name.startswith("anthropic/") else f"{served.url}/v1"
    model = open_model(ModelSpec.parse(name, base_url=base_url), api_key=served.token)
    pieces: list[Piece] = []
    listener = pieces.append if streamed else None
    done = await model.complete(ChatRequest([{"role": "user", "content": "hello"}], on_piece=listener))
    await model.close()
    assert (done.message["content"], done.usage.completion_tokens) == ("osmosis/tiny (base): hello", 26)
    assert "".join(piece.delta["content"] for piece in pieces) == ("osmosis/tiny (base): hello" if streamed else "")


def test_an_answer_is_streamed_as_it_comes_and_ends_with_whoever_asked(served: PlatformProcess) -> None:
    body = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "slow " + "x" * 400}]}
    arrived: list[float] = []
    began = time.monotonic()
    with served.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                arrived.append(time.monotonic() - began)
            if len(arrived) == 12:
                break  # hangs up in the middle of 20 seconds
    assert arrived[-1] > arrived[1], "pieces come one after the other"
    assert arrived[-1] < 15
    until(lambda: in_flight(served) == 0, "the question that nobody waits for has ended")


def in_flight(platform: PlatformProcess) -> int:
    """Questions in the model's process, as it says on its socket."""
    process = serving_process(platform)
    socket = process.cmdline()[-1]
    with httpx.Client(transport=httpx.HTTPTransport(uds=socket)) as client:
        return int(client.get("http://x/health").json()["requests_in_flight"])


def test_a_model_that_cannot_be_loaded_says_why(platform: PlatformProcess) -> None:
    platform.json("POST", "models/broken/deploy", json={})
    until(lambda: state(platform, "broken") == "failed", "the deployment has failed")
    row = platform.json("GET", "models/base/broken")
    assert (row["deployment_status"], row["deployment_message"]) == ("inactive", "it does not fit")
    code, name, message = error(ask(platform, "hi", model="broken"))
    assert (code, name) == (404, "model_not_deployed")
    assert "it does not fit" in message


def test_programs_use_a_model_as_printed(served: PlatformProcess, tmp_path: Path) -> None:
    """`osmosis model use` prints variables, and a command for each program; a stand-in of ours asks with them."""
    programs, token = write_stand_ins(tmp_path / "bin"), served.token
    words = ("--workspace", "demo", "model", "use", "tiny")
    printed = run_command(*words, cwd=tmp_path, environ=served.login_environ)
    assert printed.code == 0, printed.err
    assert token not in printed.out
    lines = printed.out.splitlines()
    exports = "\n".join(line for line in lines if line.startswith("export "))
    commands = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# "))
    asks = {"claude-code": "-p hello", "codex": "exec hello", "mini-swe-agent": "-t hello"}
    assert commands.keys() == load_harnesses().keys()
    environ = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(tmp_path), "OSMOSIS_TOKEN": token}
    for name, ask in asks.items():
        words = ["sh", "-c", f"{exports}\n{commands[name]} {ask}"]
        done = subprocess.run(words, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"result": "osmosis/tiny (base): hello"}, name


def test_calls_of_people_are_recorded_in_every_dialect(served: PlatformProcess) -> None:
    def recorded() -> dict[str, str]:
        listed = served.json("GET", "production-calls")["calls"]
        return {call["messages"][-1]["content"]: call["answer"] for call in listed if call["source"] == "deployment"}

    ask(served, "kept")
    ask(served, "streamed", stream=True)
    until(lambda: {"kept", "streamed"} <= recorded().keys(), "both calls are stored")
    assert recorded()["kept"] == "osmosis/tiny (base): kept"
    assert recorded()["streamed"] == "osmosis/tiny (base): streamed"
