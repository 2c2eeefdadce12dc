"""The parts of HarborBackend that need no harbor: what the agent is told, which task runs, what is sent."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from osmosis import AgentWorkflow, AgentWorkflowConfig, HarborBackend
from osmosis.records.protocol.messages import RolloutInit
from osmosis.sdk.harbor.entrypoint import check, load_config
from osmosis.sdk.harbor.handoff import (
    PROTOCOL,
    Code,
    Endpoint,
    Ticket,
    close_ticket,
    code_of,
    describe_config,
    find_ticket,
    home_of,
    open_ticket,
    pack,
    patch_dockerfile,
    requirements,
)
from osmosis.sdk.harbor.results import read_messages
from osmosis.sdk.harbor.trials import Tasks, copy_task, from_row, has_tests, put_row, under_task

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "3 times 4?"}


@pytest.mark.skipif(importlib.util.find_spec("harbor") is not None, reason="harbor is installed")
def test_without_harbor_it_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match=r"Python 3\.12 or later\): .*'harbor>="):
        HarborBackend(tmp_path)


@pytest.mark.parametrize(
    ("template", "words", "text"),
    [
        (None, "3 times 4?", "Be brief.\n\n3 times 4?"),
        ("Work in /app.", "Work in /app.\n\n3 times 4?", "Be brief.\n\nWork in /app.\n\n3 times 4?"),
        ("Q: {{ prompt }} ({{ metadata.unit }})", "Q: 3 times 4? (cm)", "Be brief.\n\nQ: 3 times 4? (cm)"),
        ("{{ system_prompt }} {{ prompt }}", "Be brief. 3 times 4?", "Be brief. 3 times 4?"),
    ],
)
def test_a_template_tells_the_row(template: str | None, words: str, text: str) -> None:
    told = from_row([SYSTEM, USER], {"unit": "cm"}, template)
    assert told.messages == [SYSTEM, {"role": "user", "content": words}]
    assert told.text == text


def test_earlier_turns_are_kept() -> None:
    asked = [
        USER,
        {"role": "assistant", "content": "12"},
        {"role": "user", "content": [{"type": "text", "text": "why?"}]},
    ]
    told = from_row(asked, {}, None)
    assert [m["content"] for m in told.messages] == ["3 times 4?", "12", "why?"]
    assert told.text == "user: 3 times 4?\n\nassistant: 12\n\nwhy?"
    assert under_task([SYSTEM, USER], "Do it.") == [SYSTEM, {"role": "user", "content": "Do it."}]


@pytest.mark.parametrize("template", ["{{ label }}", "{{ prompt.__class__.__mro__ }}", "{% oops"])
def test_a_template_cannot_name_the_label_or_python(template: str) -> None:
    with pytest.raises(ValueError, match=r"instruction\.md cannot be rendered"):
        from_row([USER], {"a": 1}, template)


def test_nothing_to_do_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no task"):
        from_row([SYSTEM], {}, "  ")


def test_the_row_lies_where_only_verifier_and_oracle_look(tmp_path: Path) -> None:
    task = _task(tmp_path / "tasks" / "one")
    (task / "solution").mkdir()
    init = RolloutInit(initial_messages=[USER], label="12", metadata={"a": 1}, rollout_id="r", chat_completions_url="u")
    copy = copy_task(task, tmp_path / "copies")
    put_row(copy, init, from_row([USER], {}, None))
    holders = sorted(p.relative_to(copy).as_posix() for p in copy.rglob("*") if p.is_file() and '"12"' in p.read_text())
    assert holders == ["solution/osmosis_row.json", "tests/osmosis_row.json"]
    assert json.loads((copy / "tests/osmosis_row.json").read_text())["metadata"] == {"a": 1}
    assert (copy / "instruction.md").read_text() == "3 times 4?"
    assert not (task / "tests/osmosis_row.json").exists()
    assert (has_tests(copy), copy.name) == (True, "one")


def test_tasks_are_found_by_name_and_only_inside(tmp_path: Path) -> None:
    one, two = _task(tmp_path / "tasks/one"), _task(tmp_path / "tasks/two")
    _task(tmp_path / "elsewhere")
    tasks = Tasks.open(tmp_path / "tasks", "dataset")
    assert tasks.of_row({"task_name": "one"}) == one
    assert tasks.of_row({"task_id": "two"}) == two
    for metadata, words in (
        ({}, "does not name a task"),
        ({"task": "x"}, "no task.toml"),
        ({"task": "../elsewhere"}, "outside"),
    ):
        with pytest.raises(ValueError, match=words):
            tasks.of_row(metadata)
    assert Tasks.open(one, "template").of_row({"task": "anything"}) == one


def test_code_travels_without_answers_and_secrets(tmp_path: Path) -> None:
    for name in ("main.py", ".env", ".env.local", "src/pack/mod.py", "tasks/one/tests/test.sh", ".git/config", "a.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    body = pack(Code(tmp_path, "", ("",)), [tmp_path / "tasks"])
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        assert archive.getnames() == ["main.py", "src/pack/mod.py"]
    assert pack(Code(tmp_path, "", ("",)), [tmp_path / "tasks"]) == body


def test_the_workflow_is_named_as_the_sandbox_imports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = _module(tmp_path / "project/pack/flow.py", "pack.flow", monkeypatch)
    assert home_of(module.Flow) == (tmp_path / "project", "pack.flow")
    assert code_of(module.Flow, tmp_path / "project") == Code(tmp_path / "project", "", ("",))
    assert code_of(module.Flow, tmp_path) == Code(tmp_path, "", ("project", ""))
    assert code_of(module.Flow, tmp_path / "project/pack") == Code(tmp_path / "project/pack", "pack", ("",))
    script = _module(tmp_path / "main.py", "__script__", monkeypatch)
    assert home_of(script.Flow) == (tmp_path, "main")


def test_a_config_is_named_or_json_never_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = _module(tmp_path / "flows.py", "flows", monkeypatch)
    assert describe_config(module.CONFIG, module.Flow) == {"object": "flows:CONFIG"}
    plain = module.Config(name="n", turns=3)
    described = describe_config(plain, module.Flow)
    assert described == {"class": "flows:Config", "values": json.loads(plain.model_dump_json())}
    assert load_config(described) == plain
    assert load_config({"object": "flows:CONFIG"}) is module.CONFIG
    with pytest.raises(ValueError, match="not JSON"):
        describe_config(module.Config(name="n", tool=object()), module.Flow)


def test_requirements_name_our_wheel_with_the_codes_extras(tmp_path: Path) -> None:
    wanted = ["osmosis-ai[server,strands,harbor]>=0.3.1,<0.4", "numpy>=2"]
    (tmp_path / "pyproject.toml").write_text(f"[project]\nname = 'x'\ndependencies = {wanted!r}\n")
    assert requirements(tmp_path, "osmosis.whl") == ["./osmosis.whl[server,strands]", "numpy>=2"]
    assert requirements(None, "osmosis.whl") == ["./osmosis.whl"]


def test_a_python_is_checked_for_what_the_workflow_needs(tmp_path: Path) -> None:
    listed = tmp_path / "requirements.txt"
    listed.write_text("./osmosis.whl\npydantic>=2\nnever-there; python_version < '3'\n")
    assert check(PROTOCOL, listed)
    assert not check("0", listed)
    listed.write_text("pydantic<2\n")
    assert not check(PROTOCOL, listed)
    listed.write_text("no-such-distribution\n")
    assert not check(PROTOCOL, listed)


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ("FROM python:3.12\n", ["COPY osmosis-sdk/ /osmosis/sdk/", "RUN sh /osmosis/sdk/install.sh"]),
        (
            "FROM a AS b\nUSER x\nFROM c\nUSER app\n",
            ["USER root", "COPY osmosis-sdk/ /osmosis/sdk/", "RUN sh /osmosis/sdk/install.sh", "USER app"],
        ),
        ("FROM a\nUSER x\nFROM c\n", ["COPY osmosis-sdk/ /osmosis/sdk/", "RUN sh /osmosis/sdk/install.sh"]),
    ],
)
def test_a_dockerfile_gets_the_sdk_in_its_last_stage(given: str, added: list[str]) -> None:
    patched = patch_dockerfile(given)
    assert patched.startswith(given)
    assert [line for line in patched[len(given) :].splitlines() if line and not line.startswith("#")] == added


def test_a_native_agents_trajectory_becomes_messages(tmp_path: Path) -> None:
    call = {"tool_call_id": "c1", "function_name": "run", "arguments": {"cmd": "ls"}}
    steps = [
        {"step_id": 1, "source": "system", "message": "s"},
        {"step_id": 2, "source": "user", "message": [{"type": "text", "text": "u"}]},
        {
            "step_id": 3,
            "source": "agent",
            "message": "let me look",
            "tool_calls": [call],
            "observation": {"results": [{"source_call_id": "c1", "content": "a.txt"}]},
        },
        {"step_id": 4, "source": "agent", "message": "old", "is_copied_context": True},
        {"step_id": 5, "source": "agent", "message": "done", "observation": {"results": [{"content": "screen"}]}},
    ]
    path = tmp_path / "trajectory.json"
    path.write_text(json.dumps({"steps": steps}))
    asked = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": '{"cmd": "ls"}'}}
    assert read_messages(path) == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "let me look", "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "screen"},
    ]
    assert read_messages(tmp_path / "missing.json") == []
    (tmp_path / "link.json").symlink_to(path)
    assert read_messages(tmp_path / "link.json") == []


def test_the_sandbox_is_told_an_address_it_can_reach() -> None:
    inside = Endpoint("http://127.0.0.1:9/v1/rollouts/r", "k", "r", "host.docker.internal").inside_url
    assert inside == "http://host.docker.internal:9/v1/rollouts/r"
    assert Endpoint("https://models.example/v1", "k", "r", "elsewhere").inside_url == "https://models.example/v1"
    native = Endpoint("http://m/v1", "k", "r").environment(native=True)
    assert (native["OPENAI_BASE_URL"], native["OPENAI_API_KEY"], native["OSMOSIS_ROLLOUT_ID"]) == (
        "http://m/v1",
        "k",
        "r",
    )
    assert "OPENAI_API_KEY" not in Endpoint("http://m/v1", "k", "r").environment(native=False)


def test_a_ticket_ends_with_its_rollout() -> None:
    ticket = Ticket(Endpoint("u", "k", "r"))
    assert find_ticket(open_ticket(ticket)) is ticket
    close_ticket(ticket.id)
    with pytest.raises(LookupError, match="which has ended"):
        find_ticket(ticket.id)


def _task(folder: Path) -> Path:
    (folder / "tests").mkdir(parents=True)
    (folder / "task.toml").write_text('version = "1.0"\n')
    (folder / "tests/test.sh").write_text("true\n")
    return folder


def _module(path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    module = ModuleType(name)
    module.__file__ = str(path)

    class Flow(AgentWorkflow[Any]):
        async def run(self, ctx: Any) -> list[dict[str, Any]]:
            return []

    class Config(AgentWorkflowConfig):
        turns: int = 1
        tool: Any = None

    for cls in (Flow, Config):
        cls.__module__, cls.__qualname__ = name, cls.__name__
        setattr(module, cls.__name__, cls)
    module.CONFIG = Config(name="c", tool=object())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    return module
