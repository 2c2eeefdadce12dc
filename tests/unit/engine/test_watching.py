"""What is seen from outside while a run goes on: blocked loops, adapting concurrency, where a run came from."""

import asyncio
import subprocess
import time
from pathlib import Path

from osmosis.engine.evaluate import Evaluation
from osmosis.engine.limits import Limiter
from osmosis.engine.load_agent import load_agent
from osmosis.engine.provenance import provenance
from osmosis.engine.watchdog import Watchdog
from osmosis.llm import open_model
from osmosis.records.run.plan import ModelSpec
from support.endpoint import ModelEndpoint, Reply
from support.waiting import until


async def test_code_that_blocks_the_loop_is_named_by_file_and_line():
    said = []
    watchdog = Watchdog(set(), said.append, every_s=0.02, blocked_s=0.1)
    task = asyncio.create_task(watchdog.watch())
    await asyncio.sleep(0.05)
    ends = time.monotonic() + 0.5
    while time.monotonic() < ends:  # an agent that does not await
        pass
    await until(lambda: said, what="the watchdog speaks")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert "test_watching.py:" in said[0]
    assert "in test_code_that_blocks_the_loop" in said[0]


async def test_adaptive_concurrency_backs_off_and_everything_succeeds(make_plan, make_rows):
    chat = load_agent("helpers_agents:chat", Path(__file__).parent)
    open_calls = 0

    class Narrow(ModelEndpoint):
        """Bears six calls at a time."""

        async def _answer(self, request):
            nonlocal open_calls
            open_calls += 1
            try:
                await asyncio.sleep(0.005)  # else each is over before the next one is read
                return await super()._answer(request)
            finally:
                open_calls -= 1

    def decide(body, number):
        return Reply("slow down", 429, {"retry-after": "0.01"}) if open_calls > 6 else None

    falls = []

    class Falling(Limiter):
        def rate_limited(self, seconds):
            before = self.limit
            super().rate_limited(seconds)
            falls.append(before - self.limit)

    with Narrow(decide) as endpoint:
        plan = make_plan(model=ModelSpec.parse("m", base_url=endpoint.url), concurrency=64, adaptive=True)
        limiter = Falling(64, adaptive=True)
        model = open_model(plan.model, signals=limiter)
        report = await Evaluation(plan, make_rows(120), chat.bind(plan), model=model, limiter=limiter).run()
        await model.close()
    assert (report.succeeded, report.failed) == (120, 0)
    assert max(falls) > 0, "the limit never fell"
    assert limiter.limit < 64


def git(folder, *words):
    who = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def test_provenance_names_commit_and_uncommitted_changes(tmp_path):
    assert "git" not in provenance(tmp_path)
    git(tmp_path, "init", "-q", "-b", "main")
    assert "git" not in provenance(tmp_path)
    (tmp_path / "a.py").write_text("x = 1\n")
    git(tmp_path, "add", "a.py")
    git(tmp_path, "commit", "-q", "-m", "one")
    clean = provenance(tmp_path)["git"]
    assert (len(clean["commit"]), clean["branch"], clean["dirty"]) == (40, "main", False)
    (tmp_path / "a.py").write_text("x = 2\n")
    dirty = provenance(tmp_path)["git"]
    assert dirty["dirty"]
    assert "+x = 2" in dirty["diff"]
    assert dirty["diff_sha256"]
