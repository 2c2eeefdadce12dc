"""`osmosis eval --server` against a rollout server in a process of its own: its key, its death, the resume after it."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from osmosis.engine.journal import Journal
from osmosis.serve.server_process import free_port
from support.command_line import CommandRun, run_command
from support.endpoint import ModelEndpoint, Reply
from support.eval_project import rollout_server, write_rows
from support.waiting import until

KEY = "key-of-the-rollout-server"


def test_the_servers_key_comes_from_the_variable_and_reaches_no_file(tmp_path: Path) -> None:
    write_rows(tmp_path / "d.jsonl", 6)
    port = free_port()
    line = ["eval", "--server", f"http://127.0.0.1:{port}", "-d", "d.jsonl", "--model", "offline/calculator", "--json"]

    def go(name: str, *words: str, **environ: str) -> CommandRun:
        return run_command(*line, "--name", name, *words, cwd=tmp_path, environ=environ)

    with rollout_server(tmp_path, port, {"SERVER_KEY": KEY}):
        right = go("right", "--server-key-env", "SERVER", SERVER=KEY)
        assert right.code == 0, right.err
        summary = right.json["data"]["summary"]
        assert (summary["completed_runs"], summary["failed"], summary["coverage"]) == (6, 0, 1.0)

        wrong = go("wrong", "--server-key-env", "SERVER", SERVER="key-of-another-server")
        assert (wrong.code, wrong.error["code"]) == (1, "AUTH_REQUIRED")
        assert "rejected this key" in wrong.error["message"]
        none = go("none")
        assert "requires a key" in none.error["message"]
        missing = go("missing", "--server-key-env", "SERVER")
        assert "--server-key-env SERVER: not set" in missing.error["message"]
        torn = go("missing", "--server-key-env", "SERVER", SERVER=f"{KEY}\n")
        assert "contains a line break" in torn.error["message"]
        for name in ("wrong", "none"):  # once, at once: no rollout was tried
            assert list(Journal(tmp_path / ".osmosis/runs" / name).lines()) == []
        assert not (tmp_path / ".osmosis/runs/missing").exists()
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path
    down = go("down", "--server-key-env", "SERVER", SERVER=KEY)
    assert (down.code, down.error["code"]) == (1, "NETWORK")
    assert "no rollout server answers" in down.error["message"]


def test_a_server_that_dies_midway_loses_and_doubles_nothing(tmp_path: Path) -> None:
    write_rows(tmp_path / "d.jsonl", 12)
    port = free_port()
    journal = Journal(tmp_path / ".osmosis/runs/r")
    stuck = True
    with ModelEndpoint(lambda body, n: Reply(hang=True) if stuck and n > 6 else None) as endpoint:
        words = (
            f"eval --server http://127.0.0.1:{port} --server-key-env SERVER -d d.jsonl --n 2 --name r --batch-size 3"
        )
        words += f" --model m --base-url {endpoint.url} --json"
        with rollout_server(tmp_path, port, {"SERVER_KEY": KEY}) as server:
            ran = subprocess.Popen(
                [sys.executable, "-m", "osmosis", *words.split()],
                cwd=tmp_path,
                env={"PATH": "", "HOME": str(tmp_path), "SERVER": KEY},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            asyncio.run(until(lambda: len(endpoint.requests) >= 10, within=60))  # six are answered, three hang
            server.kill()
            out, err = ran.communicate(timeout=60)
        assert ran.returncode == 1, err.decode()
        summary = json.loads(out)["data"]["summary"]
        assert "server_died" in summary["stopped"]
        assert summary["succeeded"] == 6
        kinds = {line["failure"]["category"] for line in journal.lines() if line.get("failure")}
        assert kinds == {"server_died"}
        before = {(line["row_index"], line["attempt"]): line for line in journal.lines() if not line.get("failure")}

        stuck = False
        with rollout_server(tmp_path, port, {"SERVER_KEY": KEY}):
            resume = ["eval", "resume", "r", "--retry-failed", "--json"]
            forgotten = run_command(*resume, cwd=tmp_path)
            assert "--server-key-env SERVER: not set" in forgotten.error["message"]
            again = run_command(*resume, cwd=tmp_path, environ={"SERVER": KEY})
            assert again.code == 0, again.err
    summary = again.json["data"]["summary"]
    assert (summary["completed_runs"], summary["failed"], summary["stopped"]) == (24, 0, None)
    lines = list(journal.lines())
    assert len(lines) == len({(line["row_index"], line["attempt"]) for line in lines}) == 24
    assert len(journal.rollouts_path.read_text().splitlines()) == 24
    assert {(line["row_index"], line["attempt"]) for line in lines} >= set(before)
