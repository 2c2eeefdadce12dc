"""What people do wrong and what breaks under a job: one clear failure each, in bounded time, nothing left behind."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from osmosis.records.run.job import JobEntry, JobSpec
from osmosis.records.run.rollout import Category, Failure, Phase
from osmosis.records.run.status import RunStatus

from .conftest import AGENT, SERVES_ITSELF, Desk, with_before

pytestmark = [pytest.mark.network, pytest.mark.slow]


async def find_failure(desk: Desk, job: Path) -> Failure:
    assert await desk.run(job) == 0
    assert desk.result.status is RunStatus.FAILED, desk.log
    assert desk.result.failure is not None
    assert desk.servers() == []
    return desk.result.failure


async def test_a_commit_that_is_gone(desk: Desk) -> None:
    desk.commit(main=AGENT)
    failure = await find_failure(desk, desk.write("0123456789abcdef0123456789abcdef01234567"))
    assert "commit 0123456789ab is no longer in" in failure.message
    assert list((desk.folder / "work" / "rollout").iterdir()) == []


async def test_a_rollout_that_is_not_there(desk: Desk) -> None:
    desk.config = {"experiment": {"rollout": "multipy"}}
    failure = await find_failure(desk, desk.write(desk.commit(main=AGENT)))
    assert failure.message.startswith("rollouts/multipy does not exist in commit")
    assert failure.message.endswith("available: multiply")


@pytest.mark.parametrize("tail", [SERVES_ITSELF, ""], ids=["script", "module"])
async def test_an_import_that_fails(desk: Desk, tail: str) -> None:
    failure = await find_failure(desk, desk.write(desk.commit(main="import not_installed_anywhere\n" + AGENT + tail)))
    assert "rollouts/multiply/main.py: the rollout server ended with exit code 1" in failure.message
    assert "not_installed_anywhere" in failure.message
    assert "main.py" in str(failure.traceback)
    assert "add the distribution that has not_installed_anywhere" in str(failure.fix)


async def test_a_file_that_serves_nothing(desk: Desk) -> None:
    failure = await find_failure(desk, desk.write(desk.commit(main="ANSWER = 42\n")))
    assert "defines nothing that can be served" in failure.message + str(failure.traceback)


async def test_a_script_that_ends_without_serving(desk: Desk) -> None:
    failure = await find_failure(desk, desk.write(desk.commit(main="if __name__ == '__main__':\n    print('done')\n")))
    assert "ended without serving" in failure.message


async def test_a_script_that_ends_but_exposes_an_agent_is_served(desk: Desk) -> None:
    imported = (
        "from agent import Multiply, Judge, config\nif __name__ == '__main__':\n    print('try it with pytest')\n"
    )
    assert await desk.run(desk.write(desk.commit(main=imported, agent=AGENT))) == 0
    assert desk.result.status is RunStatus.FINISHED, desk.log
    assert "serving the objects it defines instead" in desk.log


async def test_a_model_that_cannot_be_reached_is_found_out_before_the_environment(desk: Desk) -> None:
    desk.config = {"advanced": {"base_url": "http://127.0.0.1:9/v1"}, "experiment": {"model_path": "mine"}}
    failure = await find_failure(desk, desk.write(desk.commit(main=AGENT)))
    assert (failure.phase, failure.category) == (Phase.SETUP, Category.CONNECTION)
    assert "the model mine at http://127.0.0.1:9/v1 cannot be used" in failure.message
    assert "environment: " not in desk.log


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (
            {
                "experiment": {"model_path": "mine"},
                "advanced": {"base_url": "http://127.0.0.1:9/v1", "api_key_env": "MINE_KEY"},
                "secrets": {"required": ["MINE_KEY"]},
            },
            "[advanced].api_key_env names MINE_KEY",
        ),
        ({"experiment": {"model_path": "osmosis/multiply-step-20"}}, "a model hosted by this platform"),
    ],
)
async def test_a_model_that_is_named_wrongly(desk: Desk, config: dict[str, Any], says: str) -> None:
    desk.config = config
    assert says in (await find_failure(desk, desk.write(desk.commit(main=AGENT)))).message


async def test_a_dataset_that_is_not_there(desk: Desk) -> None:
    job = desk.write(desk.commit(main=AGENT))
    (desk.folder / "multiply.jsonl").unlink()
    assert "multiply.jsonl" in (await find_failure(desk, job)).message


async def test_a_rollout_that_kills_the_server_fails_alone(desk: Desk) -> None:
    desk.rows = 12
    main = with_before("if 'What is 7 times' in ctx.prompt[-1]['content']: os._exit(7)", "await asyncio.sleep(0.05)")
    assert await desk.run(desk.write(desk.commit(main=main))) == 0
    assert desk.result.status is RunStatus.FINISHED, desk.log
    assert len(desk.api.rollouts) == 24
    failed = {(r.row_index, r.attempt): r.failure for r in desk.api.rollouts.values() if r.failure is not None}
    assert set(failed) == {(5, 0), (5, 1)}
    assert {f.category for f in failed.values() if f} == {Category.SERVER_DIED}
    assert "the server ended with exit code 7" in desk.log


async def test_a_server_that_keeps_dying_ends_the_run(desk: Desk) -> None:
    main = with_before("print('out of luck', flush=True)", "os._exit(9)")
    desk.config = {"evaluation": {"batch_size": 1, "n": 1}}
    desk.rows = 60
    failure = await find_failure(desk, desk.write(desk.commit(main=main)))
    assert failure.category is Category.SERVER_DIED
    assert "exit code 9" in failure.message


async def test_heartbeats_that_die_end_the_job_with_a_word(desk: Desk) -> None:
    desk.api.heartbeat_reply = {"stop": "perhaps"}
    failure = await find_failure(desk, desk.write(desk.commit(main=with_before("await asyncio.sleep(600)"))))
    assert failure.message.startswith("the job crashed: ValidationError: ")
    assert "report it" in str(failure.fix)


async def test_a_job_that_cannot_begin_says_why(desk: Desk) -> None:
    async def refused(*arguments: str, given: bytes = b"") -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "osmosis.jobs",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await process.communicate(given)
        assert process.returncode == 2
        return said.decode()

    entry = JobEntry(lease=desk.api.token, work_dir=str(desk.folder), cache_dir="c").model_dump_json().encode()
    url = f"{desk.api.url}/api/jobs/{desk.api.run_id}"
    assert "usage: python -m osmosis.jobs" in await refused()
    assert "jobs are started by a worker" in await refused("--run", url)
    said = await refused("--run", url, given=b'{"lease": "", "secrets": {"KEY": "value-of-a-key"}}')
    assert "jobs are started by a worker" in said
    assert "value-of-a-key" not in said
    assert "is not the address of a job" in await refused("--run", desk.api.url, given=entry)
    assert "does not go there" in await refused("--run", "http://192.0.2.1/api/jobs/r", given=entry)
    desk.api.spec = JobSpec.model_construct(run_id="r", kind="eval")
    assert "this version cannot run the platform's job: run_name: Field required" in await refused(
        "--run", url, given=entry
    )
