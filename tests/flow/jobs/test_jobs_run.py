"""Whole jobs as an executor starts them: real processes, a real repository, a real environment, a real server."""

import asyncio
import re
import shutil
import signal
from pathlib import Path

import pytest

from osmosis.records.run.job import Stage
from osmosis.records.run.rollout import Category, Phase, RolloutStatus
from osmosis.records.run.status import RunStatus
from support.trace_receiver import TraceReceiver, attributes_of
from support.waiting import until

from .conftest import AGENT, DEADLINE_S, PYPROJECT, SERVES_ITSELF, Desk, with_before

pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.mark.parametrize("main", [AGENT + SERVES_ITSELF, AGENT], ids=["script", "module"])
async def test_a_run_from_commit_to_report(desk: Desk, main: str) -> None:
    job = desk.write(desk.commit(main=main))
    assert await desk.run(job) == 0
    assert desk.result.status is RunStatus.FINISHED, desk.log
    report = desk.result.report
    assert (report.total, report.completed, report.coverage) == (12, 12, 1.0)
    assert 0 < report.primary.pass_rate < 1
    assert desk.keys == desk.owed
    whole = desk.api.at(0, 0)
    assert [message["role"] for message in whole.messages][:2] == ["user", "assistant"]
    assert whole.usage.total_tokens > 0
    passed = sum(1 for r in desk.api.rollouts.values() if r.value("reward") == 1.0)
    assert passed / 12 == report.primary.pass_rate
    stages = [beat.stage for beat in desk.api.heartbeats]
    assert stages[0] is Stage.CHECKOUT
    assert {line.step for line in desk.api.logs} >= {"checkout", "preflight", "environment", "start", "rollouts"}
    assert desk.servers() == []


async def test_a_run_is_exported_with_the_keys_that_the_config_names(desk: Desk) -> None:
    receiver = TraceReceiver()
    secrets = {"OTEL_EXPORTER_OTLP_HEADERS": "x-key=secret-key", "OTHER_KEY": "no-key"}
    desk.config = {
        "export": {"targets": [f"otlp:{receiver.url}"], "content": True},
        "env": {"LD_PRELOAD": "/nowhere.so"},
        "secrets": {"required": list(secrets)},
    }
    desk.secrets = secrets
    desk.environ["WANDB_API_KEY"] = "of-the-machine"
    assert await desk.run(desk.write(desk.commit(main=AGENT + SERVES_ITSELF))) == 0
    receiver.shutdown()
    assert desk.result.status is RunStatus.FINISHED, desk.log
    assert len(receiver.roots) == 12
    assert {headers["x-key"] for headers in receiver.headers} == {"secret-key"}
    attributes = attributes_of(receiver.roots[0])
    assert (attributes["test.suite.name"], attributes["osmosis.attempt"] in (0, 1)) == ("multiply-1", True)
    assert "times" in attributes["gen_ai.input.messages"]
    assert not any(line.step == "export" for line in desk.api.logs), desk.log
    assert desk.servers() == []


async def test_an_export_that_goes_nowhere_is_a_warning_of_the_run(desk: Desk) -> None:
    desk.config = {"export": {"targets": ["otlp:http://127.0.0.1:9"]}}
    assert await desk.run(desk.write(desk.commit(main=AGENT + SERVES_ITSELF))) == 0
    assert desk.result.status is RunStatus.FINISHED, desk.log
    (line,) = [line for line in desk.api.logs if line.step == "export"]
    assert (line.level, line.message.startswith("otlp: 12 of 12 rollouts were not sent: ")) == ("warning", True)


async def test_a_job_writes_no_events_outside_of_its_folder(desk: Desk) -> None:
    pytest.importorskip("tensorboardX", reason="extra tensorboard")
    desk.config = {"export": {"targets": [f"tensorboard:{desk.folder}"]}}
    assert await desk.run(desk.write(desk.commit(main=AGENT))) == 0
    assert desk.result.failure.message == "[export] names a folder, and a job writes its event files into its own"


async def test_a_run_that_is_out_of_time_stops_with_what_it_has(desk: Desk) -> None:
    desk.config = {"advanced": {"resources": {"wall_s": 1}}}
    hangs = with_before("import asyncio", "await asyncio.sleep(3600)")
    assert await desk.run(desk.write(desk.commit(main=hangs))) == 0
    assert desk.result.status is RunStatus.STOPPED, desk.log
    assert desk.result.failure.category is Category.TIMEOUT
    assert desk.result.failure.message == "time limit: the run did not finish within 1 s"
    assert "wall_s" in str(desk.result.failure.fix)


AGENT_LOOP = """
from osmosis_ai.rollout import RolloutAgentLoop, RolloutContext, RolloutResult
import re

class Loop(RolloutAgentLoop):
    name = "multiply"

    def get_tools(self, request):
        return []

    async def run(self, ctx: RolloutContext) -> RolloutResult:
        answer = await ctx.chat(ctx.request.messages)
        messages = [*ctx.request.messages, answer.message]
        found = re.findall(r"####\\s*(-?[\\d.]+)", str(answer.message["content"]))
        right = bool(found) and float(found[-1]) == float(ctx.request.metadata["ground_truth"])
        return ctx.complete(messages, reward=1.0 if right else 0.0)

agent_loop = Loop()
"""


async def test_an_agent_loop_of_the_oldest_generation(desk: Desk) -> None:
    assert await desk.run(desk.write(desk.commit(main=AGENT_LOOP))) == 0
    assert desk.result.status is RunStatus.FINISHED, desk.log
    report = desk.result.report
    assert report.primary is not None, report.failures
    assert 0 < report.primary.pass_rate < 1
    assert desk.keys == desk.owed


COUNT = 'open(os.environ["_OSMOSIS_ROLLOUT_ARTIFACT_ROOT"] + "/count", "a")'
COUNTED = COUNT + '.write(ctx.prompt[-1]["content"] + "\\n")'
SLOW = "await asyncio.sleep(0.4)"


def executions(desk: Desk) -> int:
    """How often a rollout began, over all attempts of the job."""
    return len((desk.folder / "work" / "artifacts" / "count").read_text().splitlines())


async def test_killed_in_the_middle_it_goes_on_and_everything_counts_once(desk: Desk) -> None:
    job = desk.write(desk.commit(main=with_before(COUNTED, SLOW)))
    process = await desk.start(job)
    await until(lambda: len(desk.api.rollouts) >= 2, within=DEADLINE_S)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    await until(lambda: desk.servers() == [], within=10, what="the end of the killed job's rollout server")
    began = executions(desk)
    assert await desk.run(job) == 0
    assert desk.result.status is RunStatus.FINISHED, desk.log
    assert desk.result.report.completed == 12
    assert desk.keys == desk.owed
    assert sorted(set(desk.api.received)) == desk.owed
    kept = re.search(r"resuming: (\d+) rollouts are finished", desk.log)
    assert kept is not None, desk.log
    assert int(kept[1]) >= 2
    assert executions(desk) == began + 12 - int(kept[1])
    assert desk.servers() == []


async def test_what_the_platform_has_is_not_run_again_in_a_fresh_work_folder(desk: Desk) -> None:
    job = desk.write(desk.commit(main=with_before(COUNTED)))
    assert await desk.run(job) == 0
    first = desk.result.report
    shutil.rmtree(desk.folder / "work")
    for place in [(0, 0), (3, 1)]:
        del desk.api.rollouts[desk.api.at(*place).key]  # as a retry drops what failed
    desk.api.result = None
    assert await desk.run(job) == 0
    assert executions(desk) == 2
    assert desk.keys == desk.owed
    assert first is not None
    assert desk.result.report.completed == 12


async def test_what_the_platform_lacks_is_sent_again(desk: Desk) -> None:
    job = desk.write(desk.commit(main=with_before(COUNTED)))
    assert await desk.run(job) == 0
    lost = desk.api.rollouts.pop(desk.api.at(2, 0).key)
    assert await desk.run(job) == 0
    assert executions(desk) == 12
    assert desk.api.at(2, 0) == lost


async def test_a_stop_lets_what_is_in_flight_finish(desk: Desk) -> None:
    desk.rows = 40
    job = desk.write(desk.commit(main=with_before(SLOW)))
    process = await desk.start(job)
    await until(lambda: len(desk.api.rollouts) >= 2, within=DEADLINE_S)
    desk.api.stop = True
    assert await asyncio.wait_for(process.wait(), DEADLINE_S) == 0
    assert desk.result.status is RunStatus.STOPPED
    assert desk.result.failure is None
    report = desk.result.report
    assert report.completed == len(desk.api.rollouts) < report.total == 80
    assert {rollout.status for rollout in desk.api.rollouts.values()} == {RolloutStatus.SUCCESS}
    assert desk.servers() == []


async def test_sigterm_stops_too_and_cuts_off_what_does_not_end(desk: Desk) -> None:
    job = desk.write(desk.commit(main=with_before("await asyncio.sleep(0 if '2 times' in str(ctx.prompt) else 600)")))
    process = await desk.start(job)
    await until(lambda: len(desk.api.rollouts) == 2, within=DEADLINE_S)
    await until(lambda: sum(desk.api.heartbeats[-1].in_flight.values()) > 1, within=DEADLINE_S)
    process.terminate()
    assert await asyncio.wait_for(process.wait(), DEADLINE_S) == 0
    assert desk.result.status is RunStatus.STOPPED
    assert desk.result.report.completed == 2
    assert desk.servers() == []


async def test_sigterm_while_the_environment_is_made(desk: Desk, tmp_path: Path) -> None:
    slow = desk.folder / "person" / "rollouts" / "multiply" / "slow"
    slow.mkdir(parents=True)
    desk.environ["UV_CACHE_DIR"] = str(tmp_path / "uv")
    written = [tmp_path / "uv" / "begun", desk.cache / "uv" / "default" / "begun"]  # at level 0, and at level 1
    (slow / "backend.py").write_text(
        "import os, pathlib, time\ndef build_wheel(*_, **__):\n"
        "    pathlib.Path(os.environ['UV_CACHE_DIR'], 'begun').touch()\n    time.sleep(600)\n"
    )
    (slow / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "slow"\nversion = "1"\n'
    )
    needs = PYPROJECT.replace("iniconfig>=2", 'iniconfig>=2", "slow') + '[tool.uv.sources]\nslow = { path = "slow" }\n'
    job = desk.write(desk.commit(main=AGENT, pyproject=needs))
    process = await desk.start(job)
    await until(lambda: any(path.exists() for path in written), within=DEADLINE_S)
    process.terminate()
    assert await asyncio.wait_for(process.wait(), DEADLINE_S) == 0
    assert desk.result.status is RunStatus.STOPPED
    assert desk.result.report is None
    assert not list((desk.cache / "environments").glob("*/.making-*"))


async def test_a_lost_lease_ends_the_job_at_once(desk: Desk) -> None:
    desk.rows = 60
    job = desk.write(desk.commit(main=with_before(SLOW)))
    process = await desk.start(job)
    await until(lambda: len(desk.api.rollouts) >= 2, within=DEADLINE_S)
    desk.api.lease_lost = True
    assert await asyncio.wait_for(process.wait(), DEADLINE_S) == 3
    assert desk.api.result is None
    assert desk.servers() == []
    assert desk.api.late_writes <= 3  # what was on its way: a batch, a line, a heartbeat


async def test_a_platform_that_is_away_for_a_while(desk: Desk) -> None:
    job = desk.write(desk.commit(main=with_before(SLOW)))
    process = await desk.start(job)
    await until(lambda: len(desk.api.rollouts) >= 2, within=DEADLINE_S)
    desk.api.down = True
    asked = desk.api.requests
    await until(lambda: desk.api.requests > asked + 4, within=DEADLINE_S)
    desk.api.down = False
    assert await asyncio.wait_for(process.wait(), DEADLINE_S) == 0
    assert desk.result.status is RunStatus.FINISHED
    assert sorted(desk.api.received) == desk.owed


async def test_secrets_reach_the_rollout_and_nothing_else(desk: Desk) -> None:
    value = "s3cret-value/with+signs="
    desk.secrets["SEARCH_KEY"] = value
    desk.environ["UNDECLARED_KEY"] = "not-for-the-rollout"
    desk.config = {"env": {"MODE": "fast"}, "secrets": {"required": ["SEARCH_KEY"]}}
    seen = "names = sorted(set(os.environ) & {'SEARCH_KEY', 'MODE', 'UNDECLARED_KEY'})"
    leak = "print('key', os.environ['SEARCH_KEY'], names, flush=True)"
    fails = "raise RuntimeError(f'{names} refused ' + os.environ['SEARCH_KEY'])"
    assert await desk.run(desk.write(desk.commit(main=with_before(seen, leak, fails)))) == 0
    assert desk.result.status is RunStatus.FINISHED, desk.log
    said = desk.api.at(0, 0).failure
    assert (said.phase, said.category) == (Phase.AGENT, Category.AGENT_ERROR)
    assert "['MODE', 'SEARCH_KEY'] refused [redacted]" in said.message
    assert "key [redacted] ['MODE', 'SEARCH_KEY']" in desk.log
    stored = "".join(p.read_text() for p in (desk.folder / "work" / "journal").iterdir() if p.suffix != ".lock")
    for text in (desk.api.text(), stored):
        assert "s3cret-value" not in text
        assert desk.api.token not in text


ASKS_TWICE = """
import json, os, sys, urllib.request
messages = [{"role": "user", "content": sys.argv[1]}]
for words in ("once more", ""):
    body = {"model": os.environ["MODEL"], "max_tokens": 99, "temperature": 0, "messages": messages}
    headers = {"x-api-key": os.environ["ANTHROPIC_API_KEY"]}
    url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
    answer = json.load(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)))
    messages += [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": words}]
print(os.environ["MODE"], sorted(os.environ), open("notes.md").read())
"""
GRADES = """
import iniconfig
from osmosis import Grader

class Judge(Grader):
    async def grade(self, ctx):
        left = ctx.metadata["command"]
        assert left["stdout"].startswith("strict") and "a note" in left["stdout"], left
        assert "TOKEN" in left["stdout"] and "_OSMOSIS" not in left["stdout"], left
        ctx.set_reward(float(len(str(ctx.sample.messages[-1]["content"])) % 2))
"""


async def test_a_program_is_the_agent(desk: Desk) -> None:
    """It runs from the commit, in a sandbox beside the server, whose grader gets what it left."""
    person = desk.folder / "person"
    (person / "folder").mkdir(parents=True)
    (person / "folder" / "notes.md").write_text("a note")
    (person / "folder" / "ask.py").write_text(ASKS_TWICE)
    desk.config = {
        "experiment": {"entrypoint": None, "command": ["python3", "ask.py", "$PROMPT"]},
        "program": {"folder": "folder", "env": ["TOKEN"]},
        "env": {"MODE": "strict"},
        "secrets": {"required": ["TOKEN", "OTHER"]},
    }
    desk.secrets = {"TOKEN": "t0ken-of-it", "OTHER": "0ther-one"}
    assert await desk.run(desk.write(desk.commit(main=GRADES))) == 0
    assert desk.result.status is RunStatus.FINISHED, desk.log
    assert desk.result.report.failures == []
    assert desk.keys == desk.owed
    rollout = desk.api.at(0, 0)
    assert [message["role"] for message in rollout.messages] == ["user", "assistant", "user", "assistant"]
    assert (rollout.info["command"]["exit_code"], len(rollout.calls)) == (0, 2)
    assert "OTHER" not in rollout.info["command"]["stdout"]
    assert rollout.value("reward") in (0.0, 1.0)


async def test_a_folder_that_is_not_in_the_commit_fails_the_job(desk: Desk) -> None:
    experiment = {"entrypoint": None, "command": "true"}
    desk.config = {"experiment": experiment, "program": {"home": "nowhere"}}
    await desk.run(desk.write(desk.commit(main=GRADES)))
    assert desk.result.status is RunStatus.FAILED, desk.log
    assert "program.home: there is no folder" in desk.result.failure.message
