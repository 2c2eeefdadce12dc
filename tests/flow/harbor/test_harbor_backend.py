"""`HarborBackend` with the real harbor library: real trials, verifiers, processes and HTTP. Sandboxes are
`ProcessEnvironment`s, which are folders and processes of this machine.

Where the running Python has no harbor, one test makes an environment that has it and runs this file there.
"""

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from osmosis.records.protocol.messages import RolloutInit
from osmosis.serve.server_process import free_port
from support.endpoint import ModelEndpoint, Reply, text_reply
from support.programs import running_program
from support.server import running_app
from support.waiting import until

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[2]
EXAMPLE = PROJECT / "examples" / "harbor"
HAS_HARBOR = importlib.util.find_spec("harbor") is not None
SANDBOX = "osmosis.testing.harbor_environment:ProcessEnvironment"
KEY = "bearer-of-one-rollout-0123456789"

with_harbor = pytest.mark.skipif(not HAS_HARBOR, reason="run by test_in_an_environment_with_harbor")


@pytest.mark.network
@pytest.mark.skipif(HAS_HARBOR, reason="this Python has harbor")
@pytest.mark.parametrize("tests", ["test_harbor_by_name.py", pytest.param("", marks=pytest.mark.soak, id="all")])
def test_in_an_environment_with_harbor(tmp_path: Path, tests: str) -> None:
    python = _new_enough_python()
    if python is None:
        pytest.skip("harbor needs Python 3.12 or later, and there is none on this machine")
    uv = _uv()
    here = tmp_path / "environment"
    subprocess.run([uv, "venv", "--quiet", "--python", python, str(here)], check=True, timeout=300)
    wanted = [f"{PROJECT}[harbor]", "pytest", "pytest-asyncio"]
    install = [uv, "pip", "install", "--quiet", "--python", str(here), "-e", *wanted]
    made = subprocess.run(install, capture_output=True, text=True, timeout=900, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    run = [str(here / "bin" / "python"), "-m", "pytest", "-p", "no:cacheprovider", str(HERE / tests)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=900, cwd=PROJECT)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.is_file() else str(shutil.which("uv"))


def _new_enough_python() -> str | None:
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    names = ["python3.13", "python3.12", *map(str, sorted(pyenv.glob("3.*/bin/python"), reverse=True))]
    for name in (sys.executable, *names):
        found = shutil.which(name)
        probe = "import sys; sys.exit(sys.version_info < (3, 12))"
        if found and subprocess.run([found, "-c", probe], capture_output=True).returncode == 0:
            return found
    return None


@pytest.fixture
def endpoint() -> Iterator[ModelEndpoint]:
    with ModelEndpoint(lambda body, number: text_reply("that is #### 12")) as running:
        yield running


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Backends over the example's task, with the workflows beside this file."""
    monkeypatch.syspath_prepend(str(HERE / "sandboxed"))
    from osmosis import HarborBackend

    def made(agent: Any = "workflows:Ask", **given: Any) -> Any:
        arguments: dict[str, Any] = {
            "task_mode": "template",
            "trials_dir": tmp_path / "trials",
            "environment_config": SANDBOX,
            "environ": {"_OSMOSIS_ROLLOUT_ARTIFACT_ROOT": str(tmp_path / "artifacts")},
            "cleanup_successful_trials": False,
        }
        return HarborBackend(given.pop("tasks_dir", EXAMPLE / "tasks"), agent=agent, **{**arguments, **given})

    return made


def init(endpoint: ModelEndpoint, **given: Any) -> RolloutInit:
    fields: dict[str, Any] = {
        "initial_messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "3 times 4?"}],
        "label": "12",
        "rollout_id": "r-1",
        "chat_completions_url": endpoint.url,
        "llm_api_key": KEY,
        "agent_timeout_sec": 60,
    }
    return RolloutInit(**{**fields, **given})


def files_with(folder: Path, word: str) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file() and word.encode() in p.read_bytes()]


def task(folder: Path, test: str, *, instruction: str = "{{ prompt }}", extra: str = "") -> Path:
    (folder / "environment").mkdir(parents=True)
    (folder / "tests").mkdir()
    (folder / "environment" / "Dockerfile").write_text("FROM python:3.12-slim\nUSER someone\n")
    (folder / "task.toml").write_text(f'version = "1.0"\n{extra}')
    (folder / "instruction.md").write_text(instruction)
    (folder / "tests" / "test.sh").write_text(f"#!/bin/sh\n{test}\n")
    return folder


@with_harbor
class TestWorkflow:
    async def test_runs_in_a_sandbox_and_the_verifier_rewards(self, make: Any, endpoint: Any, tmp_path: Path) -> None:
        states: list[str] = []
        result = await make().execute(init(endpoint), on_state=states.append)
        assert result.status == "success", result.err_message
        assert states == ["queued", "running", "grading"]
        assert (result.sample.reward, result.sample.label, result.graded) == (1.0, "12", True)
        roles = [message["role"] for message in result.sample.messages]
        assert roles == ["system", "user", "assistant"]
        assert result.sample.messages[1]["content"].startswith("3 times 4?\n\nWrite only the number")
        assert endpoint.headers[0]["Authorization"] == f"Bearer {KEY}"
        assert (tmp_path / "artifacts/r-1/artifacts/note.txt").read_text() == "left by the agent"
        assert (tmp_path / "artifacts/r-1/artifacts/verifier/reward.txt").read_text().strip() == "1"
        assert not (tmp_path / "artifacts/r-1/artifacts/link.txt").exists()
        trial = tmp_path / "trials" / result.sample.extra_fields["harbor"]["trial"]
        assert json.loads((trial / "agent/trajectory.json").read_text())["schema_version"].startswith("ATIF")
        assert files_with(trial, KEY) == []
        assert files_with(trial, KEY[:8]) == []

    async def test_trials_that_ended_well_leave_nothing(self, make: Any, endpoint: Any, tmp_path: Path) -> None:
        result = await make(cleanup_successful_trials=True).execute(init(endpoint))
        assert result.status == "success"
        assert list((tmp_path / "trials").iterdir()) == []

    async def test_the_label_is_out_of_the_agents_reach(self, make: Any, endpoint: Any) -> None:
        from workflows import SPECIAL

        backend = make("workflows:LookAround", workflow_config=SPECIAL)
        result = await backend.execute(init(endpoint, label="the-hidden-label"))
        assert result.sample.messages[-1]["content"] == "0 0 False from the module"
        assert result.sample.reward == 0.0

    async def test_a_grader_has_the_verifiers_reward(self, make: Any, endpoint: Any) -> None:
        from osmosis import Grader

        class Half(Grader):
            async def grade(self, ctx: Any) -> None:
                assert (ctx.artifacts_dir / "verifier" / "reward.txt").is_file()
                ctx.set_reward(ctx.sample.reward / 2)

        assert (await make(grader=Half).execute(init(endpoint))).sample.reward == 0.5

    async def test_a_crash_is_the_agents_failure(self, make: Any, endpoint: Any, tmp_path: Path) -> None:
        states: list[str] = []
        result = await make("workflows:Crash").execute(init(endpoint), on_state=states.append)
        assert (result.status, result.err_phase.value, result.err_category) == ("failure", "agent", "agent_error")
        # Harbor 0.25 takes secrets out itself, with a mark of its own.
        assert "runtimeerror: no luck with [redacted]" in result.err_message.lower()
        assert "raise RuntimeError" in result.traceback
        assert "grading" not in states
        (trial,) = (tmp_path / "trials").iterdir()
        assert not (trial / "verifier/reward.txt").exists()
        assert files_with(tmp_path, KEY) == []

    async def test_the_time_limit_ends_it(self, make: Any, endpoint: Any, tmp_path: Path) -> None:
        note = tmp_path / "note"
        result = await make("workflows:Hang").execute(
            init(endpoint, agent_timeout_sec=0.3, metadata={"note": str(note)})
        )
        assert (result.status, result.err_phase.value, result.err_category) == ("failure", "agent", "timeout")
        assert "0.3 s" in result.err_message
        assert not Path(f"/proc/{note.read_text()}").exists()

    async def test_an_orchestrator_runs_the_trials(self, make: Any, endpoint: Any) -> None:
        from harbor.trial.queue import TrialQueue

        from osmosis import HarborBackend

        backend = HarborBackend(
            TrialQueue(n_concurrent=1),
            EXAMPLE / "tasks",
            "workflows:Ask",
            task_mode="template",
            environment_config={"import_path": SANDBOX},
            trials_dir=make().trials_dir,
        )
        states: list[str] = []
        result = await backend.execute(init(endpoint), on_state=states.append)
        assert (result.status, result.sample.reward) == ("success", 1.0)
        assert states[-1] == "grading"

    async def test_code_that_only_the_sandbox_can_import(self, make: Any, endpoint: Any, tmp_path: Path) -> None:
        (tmp_path / "code").mkdir()
        source = (HERE / "sandboxed" / "workflows.py").read_text().replace("import os", "import os\nimport only_there")
        (tmp_path / "code/flows.py").write_text(source)
        (tmp_path / "only_there.py").write_text("")
        with tarfile.open(tmp_path / "code.tar.gz", "w:gz") as archive:
            archive.add(tmp_path / "code/flows.py", "flows.py")
            archive.add(tmp_path / "only_there.py", "only_there.py")
        backend = make("flows:Ask", code_dir=tmp_path / "code", bundle=tmp_path / "code.tar.gz")
        result = await backend.execute(init(endpoint))
        assert (result.status, result.sample and result.sample.reward) == ("success", 1.0), result.err_message
        broken = await make("flows:Ask", code_dir=tmp_path / "code").execute(init(endpoint))
        assert (broken.status, broken.err_phase.value) == ("failure", "agent")
        assert "only_there" in broken.err_message

    async def test_a_task_of_two_steps_is_one_conversation(self, make: Any, endpoint: Any, tmp_path: Path) -> None:
        steps = '[[steps]]\nname = "first"\n[[steps]]\nname = "second"\n'
        folder = task(tmp_path / "tasks/one", "true", extra=steps)
        shutil.rmtree(folder / "tests")
        for name, reward in (("first", "0.5"), ("second", "1")):
            (folder / "steps" / name / "tests").mkdir(parents=True)
            (folder / "steps" / name / "instruction.md").write_text(f"The {name} step.")
            (folder / "steps" / name / "tests/test.sh").write_text(
                f"#!/bin/sh\necho {reward} >/logs/verifier/reward.txt\n"
            )
        backend = make(tasks_dir=tmp_path / "tasks", task_mode="dataset")
        result = await backend.execute(init(endpoint, metadata={"task": "one"}))
        assert (result.status, result.sample and result.sample.reward) == ("success", 0.75), result.err_message
        said = [m["content"] for m in result.sample.messages if m["role"] == "user"]
        assert said == ["The first step.", "The second step."]

    @pytest.mark.network
    async def test_the_sdk_is_installed_where_it_is_missing(
        self, make: Any, endpoint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bare, tools = tmp_path / "bare", tmp_path / "tools"
        tools.mkdir()
        (tools / "uv").symlink_to(_uv())
        monkeypatch.setenv("UV_CACHE_DIR", os.environ.get("UV_CACHE_DIR", str(Path("~/.cache/uv").expanduser())))
        await asyncio.to_thread(venv.create, bare, with_pip=True)
        sandbox = {"import_path": SANDBOX, "kwargs": {"python": str(bare / "bin/python"), "path": [str(tools)]}}
        result = await make(environment_config=sandbox, code_dir=HERE / "sandboxed").execute(init(endpoint))
        assert (result.status, result.sample and result.sample.reward) == ("success", 1.0), result.err_message
        # What ran is no part of the sandbox's own Python, which is as bare as before.
        own = await asyncio.to_thread(
            subprocess.run, [bare / "bin/python", "-c", "import pydantic"], capture_output=True
        )
        assert own.returncode == 1
        assert b"No module named 'pydantic'" in own.stderr


@with_harbor
class TestServed:
    async def test_one_rollout_from_post_to_result(self, make: Any, endpoint: Any) -> None:
        async with served(make()) as client:
            token = await start(client, endpoint, "a")
            final = await finish(client, "a", token)
        assert (final["status"], final["sample"]["reward"]) == ("success", 1.0)
        assert KEY not in json.dumps(final)

    async def test_cancel_by_id_ends_the_processes(self, make: Any, endpoint: Any, tmp_path: Path) -> None:
        note = tmp_path / "note"
        async with served(make("workflows:Hang")) as client:
            await start(client, endpoint, "c", metadata={"note": str(note)})
            await until(note.is_file, within=60, what="the workflow runs")
            assert (await client.get("/rollout/c/status")).json()["status"] == "running"
            said = (await client.post("/rollout/cancel", json={"ids": ["c"]})).json()
            assert said == {"dispositions": {"c": "cancelled_running"}}
            assert (await client.get("/rollout/c/status")).json()["status"] == "cancelled"
            await until(lambda: not Path(f"/proc/{note.read_text()}").exists(), what="the workflow's process is gone")
            await until(lambda: not files_with(tmp_path / "trials", KEY), what="the trial is scrubbed")

    async def test_a_server_that_ends_takes_its_sandboxes_down(self, make: Any, endpoint: Any, tmp_path: Path) -> None:
        from osmosis.serve.server.queue import ServeLimits

        note, backend = tmp_path / "note", make("workflows:Hang")
        async with served(backend, limits=ServeLimits(drain_s=0.1, delivery_drain_s=0.1)) as client:
            await start(client, endpoint, "s", metadata={"note": str(note)})
            await until(note.is_file, within=60, what="the workflow runs")
        assert not Path(f"/proc/{note.read_text()}").exists()
        (trial,) = backend.trials_dir.iterdir()
        assert (trial / "result.json").is_file()
        assert files_with(trial, KEY) == []

    async def test_a_full_queue_is_429(self, make: Any, endpoint: Any, tmp_path: Path) -> None:
        from workflows import Config

        config = Config(name="one", concurrency={"max_concurrent": 1})
        async with served(make("workflows:Hang", workflow_config=config, max_queue_depth=1)) as client:
            for name in ("q1", "q2"):
                await start(client, endpoint, name, metadata={"note": str(tmp_path / name)})
            answer = await client.post("/rollout", json=init(endpoint, rollout_id="q3").to_dict())
            assert answer.status_code == 429
            await client.post("/rollout/cancel", json={"all": True})


@with_harbor
class TestTasks:
    async def test_dataset_rows_name_their_task_and_the_oracle_solves_it(
        self, make: Any, endpoint: Any, tmp_path: Path
    ) -> None:
        folder = task(tmp_path / "tasks/one", "cp /app/done /logs/verifier/reward.txt", instruction="Do it.")
        (folder / "solution").mkdir()
        (folder / "solution/solve.sh").write_text("#!/bin/sh\necho 0.75 >/app/done\n")
        task(tmp_path / "tasks/two", "true")
        backend = make(None, tasks_dir=tmp_path / "tasks", task_mode="dataset")
        rewarded = await backend.execute(init(endpoint, metadata={"task_name": "one"}, label=None))
        assert (rewarded.status, rewarded.sample.reward) == ("success", 0.75)
        assert endpoint.requests == []
        for metadata, words in (
            ({"task_name": "three"}, "no task.toml"),
            ({"task_name": "../../etc"}, "outside tasks_dir"),
            (None, "does not name a task"),
        ):
            refused = await backend.execute(init(endpoint, metadata=metadata))
            assert (refused.status, refused.err_phase.value) == ("failure", "setup")
            assert refused.err_category == "validation_error"
            assert words in refused.err_message

    async def test_a_verifier_without_a_reward_is_a_score_failure(
        self, make: Any, endpoint: Any, tmp_path: Path
    ) -> None:
        task(tmp_path / "tasks/one", "echo the checker is broken")
        result = await make(tasks_dir=tmp_path / "tasks").execute(init(endpoint))
        assert (result.status, result.err_phase.value, result.sample.reward) == ("failure", "score", None)
        assert "the checker is broken" in result.err_message
        assert len(result.sample.messages) == 3

    async def test_the_graders_time_limit_covers_the_verifier(self, make: Any, endpoint: Any, tmp_path: Path) -> None:
        task(tmp_path / "tasks/one", "sleep 600")
        result = await make(tasks_dir=tmp_path / "tasks").execute(init(endpoint, grader_timeout_sec=0.5))
        assert (result.status, result.err_phase.value, result.err_category) == ("failure", "score", "timeout")

    async def test_grade_false_verifies_nothing(self, make: Any, endpoint: Any, tmp_path: Path) -> None:
        task(tmp_path / "tasks/one", "echo 1 >/logs/verifier/reward.txt")
        result = await make(tasks_dir=tmp_path / "tasks").execute(init(endpoint, grade=False))
        assert (result.status, result.sample.reward, result.graded) == ("success", None, False)

    async def test_the_dockerfile_of_the_copy_is_patched(self, make: Any, endpoint: Any, tmp_path: Path) -> None:
        test = "test -f /app/osmosis-sdk/install.sh && echo 1 >/logs/verifier/reward.txt"
        original = task(tmp_path / "tasks/one", test)
        result = await make(tasks_dir=tmp_path / "tasks", patch_dockerfile_with_sdk=True).execute(init(endpoint))
        assert result.sample.reward == 1.0, result.err_message
        assert "osmosis" not in (original / "environment/Dockerfile").read_text()
        assert not (original / "environment/osmosis-sdk").exists()


@with_harbor
class TestNative:
    async def test_a_harbor_agent_gets_the_endpoint_as_variables(self, make: Any, endpoint: Any) -> None:
        from harbor.agents.base import BaseAgent

        class Curl(BaseAgent):
            """Writes the trajectory that Harbor's own agents write."""

            @staticmethod
            def name() -> str:
                return "curl"

            def version(self) -> str:
                return "1"

            async def setup(self, environment: Any) -> None:
                return

            async def run(self, instruction: str, environment: Any, context: Any) -> None:
                body = json.dumps({"model": self.model_name, "messages": [{"role": "user", "content": instruction}]})
                done = await environment.exec(
                    'curl -s "$OPENAI_BASE_URL/chat/completions" -H "Authorization: Bearer $OPENAI_API_KEY" '
                    f"-H 'Content-Type: application/json' -d '{body}'; echo; "
                    "echo 12 >/app/answer.txt; echo $OPENAI_API_KEY"
                )
                text = json.loads(done.stdout.splitlines()[0])["choices"][0]["message"]["content"]
                steps = [
                    {"step_id": 1, "source": "user", "message": instruction},
                    {"step_id": 2, "source": "agent", "message": text, "extra": {"leak": done.stdout}},
                ]
                document = {"schema_version": "ATIF-v1.7", "agent": {"name": "curl", "version": "1"}, "steps": steps}
                (self.logs_dir / "trajectory.json").write_text(json.dumps(document))
                await environment.upload_file(self.logs_dir / "trajectory.json", "/logs/agent/trajectory.json")

        sys.modules["curl_agent"] = type(sys)("curl_agent")
        Curl.__module__, Curl.__qualname__ = "curl_agent", "Curl"
        sys.modules["curl_agent"].Curl = Curl  # type: ignore[attr-defined]
        try:
            backend = make(Curl)
            result = await backend.execute(init(endpoint))
        finally:
            del sys.modules["curl_agent"]
        assert (result.status, result.sample and result.sample.reward) == ("success", 1.0), result.err_message
        said = result.sample.messages
        assert [m["role"] for m in said] == ["user", "assistant"]
        assert said[0]["content"].startswith("Be brief.\n\n3 times 4?")
        assert endpoint.requests[0]["model"] == "openai/osmosis-rollout"
        assert endpoint.headers[0]["Authorization"] == f"Bearer {KEY}"
        assert files_with(backend.trials_dir, KEY) == []

    @pytest.mark.skipif(shutil.which("tmux") is None, reason="terminus-2 needs tmux")
    async def test_terminus_works_in_the_sandbox(self, make: Any, tmp_path: Path) -> None:
        def decide(body: dict[str, Any], number: int) -> Reply:
            keys = ["echo 12 > answer.txt\n", ""]
            commands = [{"keystrokes": keys[0], "duration": 1.0}] if number == 0 else []
            answer = {"analysis": "a", "plan": "p", "commands": commands, "task_complete": number > 0}
            return text_reply(json.dumps(answer))

        backend = make("terminus-2", native_agent_kwargs={"record_terminal_session": False, "max_turns": 6})
        with ModelEndpoint(decide) as endpoint:
            result = await backend.execute(init(endpoint))
        assert (result.status, result.sample and result.sample.reward) == ("success", 1.0), result.err_message
        assert endpoint.headers[0]["Authorization"] == f"Bearer {KEY}"
        assert result.sample.metrics["prompt_tokens"] == 10 * len(endpoint.requests)
        assert sum(m["role"] == "assistant" for m in result.sample.messages) == len(endpoint.requests)
        assert files_with(backend.trials_dir, KEY) == []

    @pytest.mark.skipif(shutil.which("tmux") is None, reason="terminus-2 needs tmux")
    async def test_a_refused_key_is_the_endpoints_failure(self, make: Any) -> None:
        backend = make("terminus-2", native_agent_kwargs={"record_terminal_session": False})
        with ModelEndpoint(lambda *_: Reply({"error": {"message": "wrong key"}}, status=401)) as endpoint:
            result = await backend.execute(init(endpoint))
        assert (result.status, result.err_phase.value, result.err_category) == ("failure", "model", "http_error")
        assert result.failure.category.value == "auth"


@with_harbor
class TestArguments:
    def test_what_cannot_work_is_refused_when_it_is_made(self, make: Any, tmp_path: Path) -> None:
        for wrong, words in (
            ({"task_mode": "both"}, "task_mode"),
            ({"tasks_dir": tmp_path}, "no Harbor task"),
            ({"agent": "no-such-agent"}, "neither one of Harbor's agents"),
            ({"agent": None, "native_agent_kwargs": {"a": 1}}, "native_agent_kwargs"),
            ({"agent": None, "patch_dockerfile_with_sdk": True}, "patch_dockerfile_with_sdk"),
            ({"max_queue_depth": -1}, "max_queue_depth"),
            ({"agent_setup_timeout_sec": 0}, "agent_setup_timeout_sec"),
            ({"code_dir": tmp_path}, "not in code_dir"),
        ):
            with pytest.raises(ValueError, match=words):
                make(**wrong)

    async def test_a_sandbox_that_cannot_be_had_is_said(self, make: Any, endpoint: Any) -> None:
        if shutil.which("docker"):
            pytest.skip("this machine has Docker")
        result = await make(environment_config="docker").execute(init(endpoint))
        assert (result.status, result.err_phase.value) == ("failure", "setup")
        assert "Docker is not installed" in result.err_message


@with_harbor
def test_the_example_serves(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(EXAMPLE, tmp_path / "harbor"))
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("OSMOSIS_", "OPENAI_"))}
    environ |= {"HARBOR_ENVIRONMENT": SANDBOX, "_OSMOSIS_ROLLOUT_ARTIFACT_ROOT": str(tmp_path / "root")}
    port = free_port()
    environ |= {"_OSMOSIS_ROLLOUT_PORT": str(port), "OSMOSIS_CACHE_DIR": str(tmp_path / "cache"), "CI": "1"}
    url = f"http://127.0.0.1:{port}/health"
    with running_program(sys.executable, "main.py", cwd=folder, url=url, environ=environ):
        words = ["--json", "eval", "--server", f"http://127.0.0.1:{port}", "-d", "data.jsonl", "--limit", "3"]
        command = [sys.executable, "-m", "osmosis", *words, "--model", "offline/calculator"]
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        data = json.loads(done.stdout)["data"]
        assert data["summary"]["total_runs"] == 3
        assert 0 < data["summary"]["reward"]["mean"] <= 1


def served(backend: Any, **given: Any) -> Any:
    from contextlib import asynccontextmanager

    from osmosis import create_rollout_server

    @asynccontextmanager
    async def running() -> Any:
        app = create_rollout_server(backend, configure_logging=False, environ={}, **given)
        async with running_app(app) as url, httpx.AsyncClient(base_url=url, timeout=90) as client:
            yield client

    return running()


async def start(client: httpx.AsyncClient, endpoint: ModelEndpoint, name: str, **given: Any) -> str:
    answer = await client.post("/rollout", json=init(endpoint, rollout_id=name, **given).to_dict())
    assert answer.status_code == 202, answer.text
    return str(answer.json()["polling_lease_token"])


async def finish(client: httpx.AsyncClient, name: str, token: str) -> dict[str, Any]:
    for _ in range(20):
        read = await client.get(f"/rollout/{name}/result", headers={"X-Osmosis-Rollout-Lease": token})
        body: dict[str, Any] = read.json()
        if body["status"] in ("success", "failure", "cancelled"):
            return body
    raise AssertionError(f"rollout {name} did not end")
