"""Addresses, the console, the mock trainer, the deadline, and that the guide's code is code."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from osmosis.compat.console import Console
from osmosis.compat.llm_clients import OsmosisLLMClient
from osmosis.compat.registration import first_address, is_private_ip, is_valid_hostname_or_ip, validate_ipv4
from osmosis.testing.mock_trainer import (
    RolloutCompletionTracker,
    create_mock_trainer_app,
    fake_prompt_token_ids,
    fake_token_ids,
    patch_httpx_for_mock_trainer,
)

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "sdk.md"


@pytest.mark.parametrize(
    ("value", "good"),
    [
        ("example.com", True),
        ("my_host:8080", True),
        ("10.0.0.1", True),
        ("10.0.0.1:9000", True),
        ("10.0.0.256", False),
        ("host:0", False),
        ("host:99999", False),
        ("-bad.com", False),
        ("a..b", False),
        ("", False),
        (":80", False),
        ("two words", False),
    ],
)
def test_hosts(value: str, good: bool) -> None:
    assert is_valid_hostname_or_ip(value) is good


def test_addresses() -> None:
    assert validate_ipv4("8.8.8.8")
    assert not validate_ipv4("8.8.8")
    assert is_private_ip("127.0.0.1")
    assert is_private_ip("192.168.1.1")
    assert not is_private_ip("8.8.8.8")
    assert not is_private_ip("nonsense")


def test_the_first_address_that_is_one_counts() -> None:
    def refused() -> str:
        raise OSError("no route")

    assert first_address({"a": refused, "b": lambda: "<html>", "c": lambda: " 8.8.4.4\n"}, 5) == "8.8.4.4"
    assert first_address({"a": refused}, 5) is None
    assert first_address({}, 5) is None


def test_console_prints_text_as_text() -> None:
    plain = io.StringIO()
    console = Console(file=plain)
    console.print("a [/red]", 3, style="red")
    console.table([["x", 1], ["longer", 22]], headers=["name", "n"])
    console.separator("part", width=12)
    console.panel("title", "content")
    assert [line.rstrip() for line in plain.getvalue().splitlines()[:5]] == [
        "a [/red] 3",
        "name    n",
        "x       1",
        "longer  22",
        "=== part ===",
    ]
    assert not console.use_rich
    assert console.escape("[b]") == "[b]"
    assert not console.run_rich(lambda _: None)
    drawn = io.StringIO()
    rich = Console(file=drawn, force_terminal=True)
    rich.print("a [/red]", style="red")
    assert "a [/red]" in drawn.getvalue()
    assert "\x1b[31m" in drawn.getvalue()
    assert rich.format_styled("[x]", "bold") == "[bold]\\[x][/bold]"
    assert rich.run_rich(lambda console: console.print("hi"))


class TestMockTrainer:
    def ask(self, client: TestClient, *messages: dict[str, Any]) -> dict[str, Any]:
        body: dict[str, Any] = client.post("/v1/chat/completions", json={"messages": list(messages)}).json()
        return body

    def test_its_policy(self) -> None:
        client = TestClient(create_mock_trainer_app())
        first = self.ask(client, {"role": "user", "content": "please ADD these"})
        call = first["choices"][0]["message"]["tool_calls"][0]
        assert (call["id"], call["function"]) == ("call_mock_add", {"name": "add", "arguments": '{"a": 5, "b": 3}'})
        after = self.ask(client, {"role": "tool", "content": "8"})
        assert after["choices"][0]["message"]["content"] == "The calculation is complete."
        assert len(after["token_ids"]) == len(after["logprobs"]) == after["usage"]["completion_tokens"]
        assert self.ask(client, {"role": "user", "content": "hi"})["choices"][0]["message"]["content"] == "OK."
        assert client.get("/health").json() == {"status": "healthy", "service": "mock-trainer"}

    def test_completions_are_kept(self) -> None:
        tracker = RolloutCompletionTracker()
        client = TestClient(create_mock_trainer_app(tracker, lambda last: None))
        assert client.get("/v1/rollout/completed/r").json() == {}
        assert client.post("/v1/rollout/completed", json={"rollout_id": "r", "status": "COMPLETED"}).json() == {
            "status": "ok"
        }
        assert tracker.wait(1)
        assert client.get("/v1/rollout/completed/r").json()["status"] == "COMPLETED"
        tracker.clear()
        assert tracker.responses == []
        assert (fake_token_ids("abc"), len(fake_prompt_token_ids([]))) == ([0, 1, 2], 10)

    async def test_clients_can_be_redirected_into_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tracker = RolloutCompletionTracker()
        patch_httpx_for_mock_trainer(TestClient(create_mock_trainer_app(tracker)), monkeypatch)
        async with OsmosisLLMClient("http://trainer.invalid", "r") as llm:
            assert (await llm.chat_completions([{"role": "user", "content": "x"}])).content == "OK."
            await llm.complete_rollout("COMPLETED", [])
        async with httpx.AsyncClient() as client:
            assert (await client.post("http://trainer.invalid/v1/chat/completions", json={})).status_code == 200
        assert len(tracker.responses) == 1


def test_the_guides_code_runs() -> None:
    found = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.S)
    blocks = [block for block in found if "HarborBackend" not in block]  # that one is a project of its own
    assert len(blocks) == len(found) - 1
    scope: dict[str, Any] = {"__name__": "guide"}
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec", dont_inherit=True), scope)
    scope["test_it_multiplies"]()
    assert scope["exact_match"]("a ", "a") == 1.0
    assert scope["agent_loop"].get_tools(None)[0].function.name == "add"
    assert scope["convert"].schema.function.parameters.required == ["amount"]
    assert 0 < scope["score"] <= 1


def test_the_guides_rubric_file_is_one(tmp_path: Path) -> None:
    from osmosis.engine.rubrics.rubric_files import load_rubric_suite

    block = re.search(r"```yaml\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.S)
    assert block
    (tmp_path / "r.yaml").write_text(block[1])
    assert load_rubric_suite(tmp_path / "r.yaml").available_ids() == ["support_followup"]
