"""A workspace, a rollout and its runs, by the commands people type: submit, refuse, follow, look, fetch, stop."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from osmosis.cli.platform import process as local_platform
from osmosis.cli.schema import schema_of
from osmosis.jobs.commands import uv_environ
from support.command_line import CommandRun, run_command

pytestmark = [pytest.mark.network, pytest.mark.slow]
Run = Callable[..., CommandRun]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Run]]:
    """A workspace with the multiply rollout, pushed and synced, and a function that runs commands in it."""
    home = tmp_path_factory.mktemp("runs")
    # The package index of this machine may need its certificates and proxies.
    machine = {k: v for k, v in uv_environ(os.environ).items() if k not in ("HOME", "PATH")}
    folders = {f"OSMOSIS_{n}_DIR": str(home / ".home" / n.lower()) for n in ("CONFIG", "DATA", "CACHE")}

    def go(*words: str, cwd: Path | None = None, stdin: str = "", **environ: str) -> CommandRun:
        return run_command(
            *words, "--json", cwd=cwd or home / "demo", environ={**machine, **folders, **environ}, stdin=stdin
        )

    try:
        for words in (["platform", "start", "--port", "0"], ["login"], ["init", "demo"]):
            ran = go(*words, cwd=home)
            assert ran.code == 0, ran.err
        assert go("rollout", "new", "multiply", "--template", "multiply").code == 0
        assert go("dataset", "upload", "data/multiply.jsonl").code == 0
        assert go("config", "set", "multiply", "evaluation.limit", "4", "evaluation.n", "3").code == 0
        push(home / "demo")
        synced = go("sync", "--wait")
        assert synced.code == 0, synced.err
        yield home / "demo", go
    finally:
        local_platform.stop(home / ".home" / "data")


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "add")


def push(folder: Path) -> None:
    commit(folder)
    git(folder, "push", "-q")


@pytest.mark.slow
def test_the_platform_carries_a_decision_on(place: tuple[Path, Run]) -> None:
    _, run = place
    question, few = "offline/echo >= offline/calculator - 0.1", ("-c", "multiply", "--limit", "20", "--name", "d")
    refused = run("eval", "decide", "--arm", "max_turns=1,2", *few, "--submit", "--yes")
    assert "--arm max_turns is an option of local runs" in refused.error["message"]
    done = run("eval", "decide", question, *few, "--submit", "--wait", "--yes")
    assert done.code == 0, done.err
    assert [(item["answer"], item["rows"]) for item in done.json["items"]] == [("no", 20)]
    assert done.json["runs"]["offline/echo"] == ["d--offline-echo--part1"]
    assert (done.json["status"], done.json["rollouts"], done.json["planned_rollouts"]) == ("decided", 40, 40)
    again = run("eval", "decide", question, *few, "--submit")  # nothing to confirm
    assert again.json == done.json
    assert run("eval", "decide", "--stop", "d", "--yes").code != 0


def test_a_run_from_refusal_to_results(place: tuple[Path, Run]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    folder, run = place
    assert run("rollout", "new", "fresh", "--template", "multiply").code == 0
    config = "configs/eval/fresh.toml"
    for key, value in (("experiment.dataset", "multiply"), ("evaluation.limit", "4"), ("evaluation.n", "3")):
        assert run("config", "set", "fresh", key, value).code == 0
    assert run("config", "set", "fresh", "schedule.every", "1d").code == 0
    refused = run("eval", "submit", config, "--yes")
    assert refused.error["details"]["issues"][0]["key"] in ("not-in-git", "untracked-rollout")
    commit(folder)
    assert "git push" in run("eval", "submit", config, "--yes").error["details"]["hint"]
    git(folder, "push", "-q")
    assert run("eval", "submit", config).error["code"] == "INTERACTIVE_REQUIRED"

    sent = run("eval", "submit", config, "--yes", "--wait-sync")
    assert sent.code == 0, sent.err
    jsonschema.validate(sent.json, schema_of(["eval", "submit"]))
    assert sent.json["next_steps_structured"][-1]["command"] == "osmosis eval schedules --stop fresh"
    name = sent.json["resource"]["name"]
    assert [(row["name"], row["last_run_name"]) for row in run("eval", "schedules").json["items"]] == [("fresh", name)]
    ended = run("eval", "wait", name)
    assert ended.code == 0, ended.json["resource"]["failure"]
    report = ended.json["resource"]["report"]
    assert (report["total"], report["completed"], report["failed"]) == (12, 12, 0)
    rate = ended.json["resource"]["summary"]["pass_rate"]
    assert 0 < rate < 1
    jsonschema.validate(ended.json, schema_of(["eval", "wait"]))
    flags = ("--model", "offline/echo", "--n", "1", "--limit", "2", "--name", "other.model")
    other = run("eval", "submit", config, "--yes", "--wait", *flags)
    assert "2 of 240 rows run (the first 2): too few to tell" in other.err
    assert (other.json["resource"]["name"], other.json["resource"]["report"]["total"]) == ("other.model", 2)
    assert other.json["resource"]["model_name"] == "offline/echo"
    assert run("eval", "schedules", "--stop", "fresh", "--yes").code == 0
    assert run("eval", "schedules").json["items"] == []
    taken = run("eval", "submit", config, "--yes", *flags)
    assert taken.error["message"] == "there is already a run named other.model"
    below = run("eval", "wait", name, "--fail-under", "1.0")
    assert (below.code, "--fail-under: pass rate" in below.json["message"]) == (1, True)

    info = run("eval", "info", name, "-o", "out/info.json")
    jsonschema.validate(info.json, schema_of(["eval", "info"]))
    assert info.json["data"]["summary"]["pass_rate"] == rate
    assert json.loads((folder / "out/info.json").read_text())["data"]["eval_run"]["name"] == name
    assert [row["name"] for row in run("eval", "list").json["items"]][:2] == ["other.model", name]
    logs = run("eval", "logs", name, "--limit", "5").json
    assert (len(logs["items"]), logs["next_cursor"] is None) == (5, False)
    followed = run("eval", "logs", name, "--follow")
    assert json.loads(followed.out.splitlines()[-1])["step"]
    assert run("eval", "stop", name, "--yes").json["message"].endswith("finished already")

    got = run("eval", "download", name, "--type", "all")
    assert (got.code, got.json["resource"]["files_failed"]) == (0, [])
    place_of = Path(got.json["resource"]["path"])
    assert place_of == folder / ".osmosis/evals" / name
    assert len(list((place_of / "trajectories").iterdir())) == 12
    assert run("eval", "download", name, "--type", "all").json["resource"]["files_fetched"] == 0

    assert run("eval", "seal", f"platform:{name}", "-o", "out/sealed.zip").code == 0
    assert run("eval", "delete", name, "--yes").code == 0
    assert run("eval", "info", name).error["code"] == "NOT_FOUND"
    main = folder / "rollouts/fresh/main.py"
    folders = {f"OSMOSIS_{n}_DIR": str(folder.parent / ".home" / n.lower()) for n in ("CONFIG", "DATA", "CACHE")}
    command = [sys.executable, "-m", "osmosis", "verify", "out/sealed.zip", "--json"]
    for changes, code in (("", 0), ("\n", 1)):
        main.write_text(main.read_text() + changes)
        checked = subprocess.run(command, cwd=folder, env={**os.environ, **folders}, capture_output=True, text=True)
        data = json.loads(checked.stdout)["data"]
        counts = (data["graded"], data["replayed"], data["differing"])
        assert (checked.returncode, *counts) == (code, 12, 12, code), checked.stdout
    assert data["differences"][0]["where"] == "code: agent (rollouts/fresh/main.py)"


def test_a_snapshot_runs_what_lies_here(place: tuple[Path, Run]) -> None:
    folder, run = place
    main = folder / "rollouts/multiply/main.py"
    before = main.read_text()
    main.write_text(before + "\n# not committed\n")
    try:
        assert run("eval", "submit", "multiply", "--yes").error["details"]["issues"][0]["key"] == "dirty-rollout"
        sent = run("eval", "submit", "multiply", "--yes", "--snapshot")
        assert sent.code == 0, sent.err
        detail = run("eval", "info", sent.json["resource"]["name"]).json["data"]
        assert "# not committed" in detail["snapshot"]["diff"]
        name = sent.json["resource"]["name"]
        stopped = run("eval", "stop", name, "--yes")
        assert stopped.code == 0 or "finished" in stopped.error["message"]  # it may have ended between two requests
        assert run("eval", "wait", name).json["resource"]["status"] in ("stopped", "finished")
    finally:
        main.write_text(before)


def test_secrets_are_named_before_anything_is_sent(place: tuple[Path, Run]) -> None:
    folder, run = place
    config = folder / "configs/eval/multiply.toml"
    before = config.read_text()
    try:
        assert run("config", "set", "multiply", "secrets.required", '["NEEDED"]').code == 0
        missing = run("eval", "submit", "multiply", "--yes", "--allow-dirty")
        assert (missing.error["code"], missing.error["details"]["missing"]) == ("INTERACTIVE_REQUIRED", ["NEEDED"])
        assert run("secret", "check", "configs/eval/multiply.toml").code == 1
        extra = run("eval", "submit", "multiply", "--yes", "--secrets-file", "-", stdin="OTHER=1\n")
        assert "does not require: OTHER" in extra.error["message"]
        bad = run("eval", "submit", "multiply", "--yes", "--secrets-file", "-", stdin="NEEDED=1\nhunter2\n")
        assert "line 2" in bad.error["message"]
        assert "hunter2" not in bad.err
        value = "value-of-needed-123"
        sent = run("eval", "submit", "multiply", "--yes", "--secrets-file", "-", stdin=f"NEEDED='{value}'\n")
        assert sent.code == 0, sent.err
        name = sent.json["resource"]["name"]
        assert value not in run("eval", "info", name).out + run("eval", "logs", name, "--limit", "200").out
        run("eval", "stop", name, "--yes")
    finally:
        config.write_text(before)


def test_a_local_command_line_runs_there_with_on(place: tuple[Path, Run]) -> None:
    folder, run = place
    url = run("platform", "status").json["data"]["url"]
    main = folder / "rollouts/multiply/main.py"
    before = main.read_text()
    main.write_text(before + "\n# only here\n")
    flags = ("--n", "1", "--batch-size", "2", "--shards", "2", "--param", "temperature=0.5")
    refused = run("eval", "run", "multiply", "--rows", "1,2", "--on", url, "--yes")
    assert "--limit N" in refused.error["details"]["hint"]
    assert "--on URL" in run("eval", "run", "multiply", "--shards", "2").error["message"]
    try:
        ran = run("eval", "run", "multiply", "--on", url, "--yes", "-o", "there.json", "--name", "there", *flags)
    finally:
        main.write_text(before)
    assert ran.code == 0, ran.err
    resource = ran.json["resource"]
    assert (resource["name"], resource["status"], resource["report"]["completed"]) == ("there", "finished", 4)
    assert json.loads((folder / "there.json").read_text())["report"]["total"] == 4
    fetched = Path(resource["download"]["path"])
    assert len(list((fetched / "trajectories").iterdir())) == 4
    detail = run("eval", "info", "there").json["data"]
    assert "# only here" in detail["snapshot"]["diff"], "the tree as it was, uncommitted changes too"
    assert detail["config"]["advanced"]["params"] == {"temperature": 0.5}
    assert detail["config"]["evaluation"]["batch_size"] == 2


def test_on_runs_every_row_and_goes_on_after_ctrl_c(place: tuple[Path, Run]) -> None:
    folder, run = place
    url = run("platform", "status").json["data"]["url"]
    config = folder / "configs/eval/multiply.toml"
    before = config.read_text()
    config.write_text(re.sub(r"(?m)^limit\s*=.*\n", "", before))
    words = ("eval", "run", "multiply", "--on", url, "--yes", "--name", "followed")
    folders = {f"OSMOSIS_{n}_DIR": str(folder.parent / ".home" / n.lower()) for n in ("CONFIG", "DATA", "CACHE")}
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "osmosis", *words],
            cwd=folder,
            env={**os.environ, **folders},
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        said = ""
        while "submitted followed" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        process.send_signal(signal.SIGINT)
        said += process.communicate(timeout=60)[1]
    finally:
        config.write_text(before)
    assert process.returncode == 130
    assert f"follow it again with: osmosis eval wait followed --platform {url}" in said
    assert f"stop it with: osmosis eval stop followed --platform {url}" in said
    detail = run("eval", "info", "followed").json["data"]
    assert detail["eval_run"]["status"] in ("pending", "running")
    assert detail["config"]["evaluation"]["limit"] == 240, "all rows, as on this machine"
    assert run("eval", "stop", "followed", "--yes").code == 0
