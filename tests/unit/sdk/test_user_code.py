"""User code under a time limit and in threads: what it raises stays its own, and nothing of it holds an exit."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextvars import ContextVar

import pytest

from osmosis.sdk.user_code import CodeExited, DeadlineExceeded, SelfCancelled, in_thread, run_user_code


async def test_a_time_limit_ends_code_and_tells_its_end_from_others() -> None:
    async def value() -> int:
        return 3

    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(30)
            except BaseException:  # noqa: BLE001 - the fault that is tested
                pass

    async def own_timeout() -> None:
        raise asyncio.TimeoutError("mine")

    async def cancels_itself() -> None:
        raise asyncio.CancelledError

    assert await run_user_code(value(), 5) == 3
    assert await run_user_code(value(), None) == 3
    with pytest.raises(DeadlineExceeded, match=r"0\.02 s"):
        await run_user_code(stubborn(), 0.02, grace_s=0.02, name="stubborn")
    await asyncio.sleep(0)
    assert "stubborn" not in [task.get_name() for task in asyncio.all_tasks()]
    with pytest.raises(asyncio.TimeoutError, match="mine"):
        await run_user_code(own_timeout(), 5)
    with pytest.raises(SelfCancelled):
        await run_user_code(cancels_itself(), 5)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
async def test_code_that_would_end_the_process_fails_alone(error: BaseException) -> None:
    async def exits() -> None:
        raise error

    with pytest.raises(CodeExited, match="would have ended the process"):
        await run_user_code(exits())


async def test_cancelling_the_caller_cancels_the_code() -> None:
    cleaned_up = asyncio.Event()

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned_up.set()

    caller = asyncio.create_task(run_user_code(waits(), 30))
    await asyncio.sleep(0.01)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert cleaned_up.is_set()


async def test_code_left_behind_makes_no_more_steps() -> None:
    steps = 0

    async def swallows() -> None:
        nonlocal steps
        while True:
            try:
                await asyncio.sleep(0.01)
                steps += 1
            except asyncio.CancelledError:
                pass

    with pytest.raises(DeadlineExceeded):
        await run_user_code(swallows(), 0.05, grace_s=0.05)
    before = steps
    await asyncio.sleep(0.05)
    assert steps == before


async def test_functions_in_threads_see_the_context_and_carry_their_errors() -> None:
    seen: ContextVar[str] = ContextVar("seen")
    seen.set("here")
    assert await in_thread(lambda a, b: (seen.get(), a, b), 1, b=2) == ("here", 1, 2)
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 / 0)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await in_thread(next, iter(()))


def test_a_function_that_hangs_holds_no_exit() -> None:
    program = (
        "import asyncio, time\n"
        "from osmosis.sdk.user_code import in_thread\n"
        "async def main():\n"
        "    await asyncio.wait_for(in_thread(time.sleep, 600), 0.05)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "TimeoutError" in done.stderr
