"""`osmosis optimize` on a platform: a real job with GEPA, a real repository; only the two models are stand-ins."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from osmosis.base.git import Git
from osmosis.base.jsonable import JsonObject
from support.command_line import CommandRun, run_command
from support.git_workspace import GitWorkspace
from support.platform_process import PlatformProcess, until

from .test_optimize import PRODUCT, SEED, make_workspace

pytestmark = [pytest.mark.network, pytest.mark.slow]
TEXT = "rollouts/multiply/prompts/task.md"


@dataclass(frozen=True)
class Place:
    platform: PlatformProcess
    workspace: GitWorkspace

    def run(self, *words: str) -> CommandRun:
        root = self.workspace.root
        return run_command(*words, "--json", cwd=root, environ=self.platform.login_environ)

    def succeed(self, *words: str) -> Any:
        done = self.run(*words)
        assert done.code == 0, done.out + done.err
        return done.json

    def search(self, name: str) -> JsonObject:
        return self.platform.json("GET", f"eval-runs/{name}").get("optimization") or {}

    def jobs(self) -> list[psutil.Process]:
        children = psutil.Process(self.platform.process.pid).children(recursive=True)
        running = (child for child in children if child.status() != psutil.STATUS_ZOMBIE)
        return [child for child in running if "osmosis.jobs" in child.cmdline()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("optimize")
    platform = PlatformProcess(folder / "data", job_command=f"{sys.executable} -m osmosis.jobs")
    platform.start()
    try:
        platform.login()
        workspace = make_workspace(folder / "workspace")
        main = workspace.root / "rollouts/multiply/main.py"
        slow = "        import asyncio; await asyncio.sleep(0.05)  # so that there is a middle to be killed in\n"
        main.write_text(main.read_text().replace("        text = instructions", f"{slow}        text = instructions"))
        workspace.write(".gitignore", ".osmosis/\n.home/\n")
        url = platform.json("GET", "workspaces")["workspaces"][0]["connected_repo"]["url"]
        workspace.git("remote", "add", "origin", url.replace("://", f"://git:{platform.token}@"))
        workspace.commit()
        workspace.push()
        made = Place(platform, workspace)
        made.succeed("dataset", "upload", "data/numbers.jsonl", "--yes")
        yield made
    finally:
        platform.end()


@pytest.fixture(scope="module")
def whole(place: Place) -> JsonObject:
    """A search that nothing interrupted, as `submit --wait` prints it."""
    done: JsonObject = place.succeed("optimize", "submit", "numbers", "--yes", "--wait-sync", "--wait")["resource"]
    return done


def test_a_winner_is_found_tested_and_shown(place: Place, whole: JsonObject) -> None:
    search, name = whole["optimization"], whole["name"]
    assert name == "multiply-optimize-1"
    assert (whole["status"], search["verdict"], search["seed"]) == ("finished", "better", {"prompts/task.md": SEED})
    local = run_command("optimize", "numbers", "--json", cwd=place.workspace.root).json["data"]
    for key in ("rows", "stopped", "winner", "conclusion", "diff", "rollouts", "reflections"):
        assert search[key] == local[key], key
    assert [each["validation"] for each in search["candidates"]] == [each["validation"] for each in local["candidates"]]
    counted = place.platform.json("GET", f"eval-runs/{name}/rollouts?limit=100")["rollouts"]
    assert (len(counted), whole["report"]["completed"], whole["report"]["rows"]) == (16, 16, 16)
    assert place.succeed("eval", "info", name)["data"]["optimization"]["winner"] == search["winner"]

    run = place.platform.run(name)
    page = place.platform.http.get(f"/runs/{run['id']}").text
    assert all(each["name"] in page for each in search["candidates"])
    assert search["conclusion"] in page
    assert "Give the product of the two numbers." in page
    step = next(each["step"] for each in search["candidates"] if each["name"] == search["winner"])
    of_step = place.platform.http.get(f"/runs/{run['id']}/rollouts?step={step}").text
    assert ("Give the product" in of_step, "Answer the question" in of_step) == (True, False)


@pytest.mark.parametrize("disk", [pytest.param("kept", marks=pytest.mark.soak), "emptied"])
def test_a_killed_job_goes_on_where_it_was(place: Place, whole: JsonObject, disk: str) -> None:
    name = place.succeed("optimize", "submit", "numbers", "--yes")["resource"]["name"]
    until(lambda: place.search(name).get("reflections", 0) >= 2, "two answers are stored", within_s=120)
    for job in place.jobs():
        os.killpg(job.pid, signal.SIGKILL)
    stored = place.platform.folder(name) / "journal"
    if disk == "emptied":  # as on another machine: all that is left is what the platform was told
        shutil.rmtree(stored)
        shutil.rmtree(place.platform.folder(name) / "rollout")
        (place.platform.folder(name) / "reflections.json").unlink()
    ended = place.platform.reaches(name, "finished", within_s=240)
    assert "restarting (start 2)" in place.platform.logs(name)
    for key in ("candidates", "winner", "conclusion", "rollouts", "reflections", "stopped"):
        assert ended["optimization"][key] == whole["optimization"][key], key
    assert sum(1 for _ in (stored / "rollouts.jsonl").open()) == whole["optimization"]["rollouts"]


def test_a_stopped_search_goes_on_when_it_is_resumed(place: Place, whole: JsonObject) -> None:
    name = place.succeed("optimize", "submit", "numbers", "--yes", "--name", "stopped")["resource"]["name"]
    until(lambda: place.search(name).get("reflections", 0) >= 1, "an answer is stored", within_s=120)
    place.succeed("eval", "stop", name, "--yes")
    place.platform.reaches(name, "stopped")
    refused = place.run("optimize", "apply", name, "--yes").error
    assert refused["message"].startswith("nothing is better")
    place.succeed("eval", "resume", f"platform:{name}", "--yes")
    assert (
        place.succeed("eval", "wait", name)["resource"]["optimization"]["conclusion"]
        == (whole["optimization"]["conclusion"])
    )
    assert "ends by its own budget" in place.run("eval", "resume", f"platform:{name}", "--yes").error["message"]


def test_apply_writes_the_texts_unless_they_have_changed(place: Place, whole: JsonObject) -> None:
    file, name = place.workspace.root / TEXT, whole["name"]
    asked = place.run("optimize", "apply", name).error
    assert asked["code"] == "INTERACTIVE_REQUIRED"
    file.write_text("mine\n")
    refused = place.run("optimize", "apply", name, "--yes").error
    assert (refused["code"], file.read_text()) == ("CONFLICT", "mine\n")
    file.write_text(SEED)
    done = place.succeed("optimize", "apply", name, "--yes")
    try:
        assert file.read_text() == PRODUCT
        assert (
            Git(place.workspace.root).text("diff", "--", TEXT).strip().endswith(done["resource"]["diff"].strip()[-60:])
        )
    finally:
        file.write_text(SEED)


def test_what_cannot_work_is_refused_at_the_submit(place: Place) -> None:
    config = place.workspace.root / "configs/optimize/numbers.toml"
    before = config.read_text()
    try:
        config.write_text(before.replace("test_rows = 16", "test_rows = 60"))
        refused = place.run("optimize", "submit", "numbers", "--yes").error
        assert "the dataset has 30 different rows" in json.dumps(refused)
        config.write_text(before.replace("[optimize]", '[optimize]\nprompts = ["elsewhere"]'))
        assert "elsewhere" in place.run("optimize", "submit", "numbers", "--yes").error["message"]
        config.write_text(before.replace("max_rollouts = 150", "max_rollouts = 50"))
        assert "max_rollouts = 50 is too few" in json.dumps(place.run("optimize", "submit", "numbers", "--yes").error)
    finally:
        config.write_text(before)
    assert "no eval run named" in place.run("optimize", "apply", "nothing", "--yes").error["message"]
