"""Two machines that share no disk do one sharded evaluation of a platform behind TLS; machines are lost meanwhile."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.command_line import login_environ
from support.platform_process import PlatformProcess, until

from .two_machines import URL, Hub, Machine, hub, platform_in

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's"), pytest.mark.slow]


@pytest.fixture
def network(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with hub(tmp_path, tmp_path_factory.getbasetemp()) as made:
        yield made


def all_rollouts(platform: PlatformProcess, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        page = platform.json("GET", f"eval-runs/{name}/rollouts?limit=50&offset={len(found)}")["rollouts"]
        found += page
        if len(page) < 50:
            return found


def keys_of(platform: PlatformProcess, name: str) -> list[tuple[int, int]]:
    return sorted((row["row_index"], row["attempt"]) for row in all_rollouts(platform, name))


def journal_of(machine: Machine, run_id: str) -> list[tuple[int, int]]:
    lines = [
        line
        for journal in (machine.folder / "jobs" / "runs" / run_id).rglob("fake-journal.jsonl")
        for line in journal.read_bytes().splitlines()
    ]
    return [(row["row_index"], row["attempt"]) for row in map(json.loads, lines)]


def asked_from_the_hub(network: Hub, platform: PlatformProcess, *words: str) -> Any:
    """What the command line says, which knows the platform by its certificates only."""
    told = {**login_environ(URL, platform.token), "OSMOSIS_CA_FILE": str(network.authority.ca_file)}
    command = [*network.within, "env", *(f"{key}={value}" for key, value in told.items())]
    command += [sys.executable, "-m", "osmosis", *words, "--json", "--workspace", "demo"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.soak
def test_a_machine_and_the_platform_are_killed_and_nothing_is_lost_or_doubled(network: Hub, tmp_path: Path) -> None:
    """60 rollouts in two shards. The machine that is lost had 10 of them; the other does the rest of both."""
    evaluation: dict[str, Any] = {"limit": 12, "n": 5, "batch_size": 4}
    with platform_in(network, tmp_path, lease="8") as platform:
        token = platform.json("POST", "tokens", json={"name": "two", "scopes": ["worker"]})["token"]
        one = network.worker("one", tmp_path / "one", token)
        two = network.worker("two", tmp_path / "two", token)
        name = platform.submit("wait:10", evaluation_config=evaluation, advanced_config={"shards": 2})
        run_id = str(platform.run(name)["id"])
        until(lambda: len(all_rollouts(platform, name)) == 20, "both have done ten")
        assert len(journal_of(one, run_id)) == len(journal_of(two, run_id)) == 10, "each machine has a shard"

        two.kill()
        platform.kill()
        for shard in (0, 1):
            one.job_folder(run_id, shard).mkdir(parents=True, exist_ok=True)
            (one.job_folder(run_id, shard) / "go").touch()
        platform.start()
        found = platform.reaches(name, "finished")

        owed = [(row, attempt) for row in range(12) for attempt in range(5)]
        assert keys_of(platform, name) == owed, one.log
        assert sorted(journal_of(one, run_id) + journal_of(two, run_id)) == owed, "nothing was done twice"
        single = platform.submit(evaluation_config=evaluation)
        expected = platform.reaches(single, "finished")["results"]
        for figures in (expected, found["results"]):
            figures["reward_stats"].pop("pass_at_k")  # the fake job's own report has none
        assert found["results"] == expected
        shown = asked_from_the_hub(network, platform, "eval", "info", name)
        assert shown["data"]["eval_run"]["status"] == "finished"


@pytest.mark.soak  # two minutes, most of it waiting for leases
def test_a_machine_that_was_cut_off_for_longer_than_its_lease_writes_nothing_afterwards(
    network: Hub, tmp_path: Path
) -> None:
    """It has done 6 of 24 when its cable is taken out; the other machine takes over."""
    with platform_in(network, tmp_path, lease="4") as platform:
        token = platform.json("POST", "tokens", json={"name": "two", "scopes": ["worker"]})["token"]
        machines = [network.worker(name, tmp_path / name, token) for name in ("one", "two")]
        name = platform.submit("wait:6", evaluation_config={"limit": 12, "n": 2})
        run_id = str(platform.run(name)["id"])
        until(lambda: len(all_rollouts(platform, name)) == 6, "the first has done six")
        [lost] = [machine for machine in machines if journal_of(machine, run_id)]
        network.cut_off(lost)
        until(lambda: len(all_rollouts(platform, name)) == 12, "the other machine has gone on")
        for machine in machines:
            (machine.folder / "jobs" / "runs" / run_id / "go").touch()
        platform.reaches(name, "finished")
        assert has_job(lost), "it knows of nothing"
        network.cut_off(lost, again=True)
        until(lambda: not has_job(lost), "its job is refused and ends")
        assert len(journal_of(lost, run_id)) == 6, "it did no more"
        assert keys_of(platform, name) == [(row, attempt) for row in range(12) for attempt in range(2)]
        assert platform.logs(name).count("job started") == 2, platform.logs(name)


def has_job(machine: Machine) -> bool:
    processes = psutil.Process(machine.holder.pid).children(recursive=True)
    return any("fake_job" in process.cmdline() for process in processes if process.status() != psutil.STATUS_ZOMBIE)
