"""Steps on a Tinker server: how long sampling and update take, and whether the reward rises.

    python benchmarks/tinker.py --base-url http://HOST:8000 --model Qwen/Qwen3-8B --tokenizer FOLDER
    python benchmarks/tinker.py --tokenizer FOLDER       # a server of ours without a model: the cost of the way there

The trainer is the product's own, in its own environment (extra `tinker`, made on the first run); the task is the sum of
two numbers with a tool. The key comes from TINKER_API_KEY. A real server charges for STEPS x ROWS x SAMPLES rollouts of
two short answers each.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import uv

from osmosis.base.installation import build_wheel
from osmosis.jobs.context import JobLog
from osmosis.jobs.trainer.environment import TrainerBuilder
from osmosis.training.protocol.client import TrainerClient
from osmosis.training.protocol.messages import Batch, Collect, Done, Failed, Notice, StepMetrics
from osmosis.training.protocol.plans import TrainerPlan

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from support.fake_tinker import MODEL, FakeTinker
from support.trainer_drive import Answer, adding, follow

SHOWN = ("rollout/raw_reward", "train/loss", "perf/rollout_s", "perf/wait_s", "perf/update_s", "perf/tokens_per_s")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base-url", help="of a Tinker server; without it, one of ours that has no model")
    parser.add_argument("--model", default=MODEL, help="as the server calls it")
    parser.add_argument(
        "--tokenizer", type=Path, required=True, help="folder with the model's tokenizer and chat template"
    )
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rows", type=int, default=8, help="of a step")
    parser.add_argument("--samples", type=int, default=8, help="of a row")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--cache", type=Path, default=Path(".demo-train/platform/cache"), help="for the environment")
    return parser.parse_args()


async def measured(chosen: argparse.Namespace, url: str, folder: Path) -> int:
    """Trains, printing each step; 0 when it went through."""
    log = JobLog(None, lambda line: print(line.message, file=sys.stderr))
    cache = chosen.cache.absolute()
    builder = TrainerBuilder(uv.find_uv_bin(), cache, build_wheel(cache), os.environ, log, torch="cpu")
    made = await replace(builder, extras=("train", "tinker")).environment()
    plan = TrainerPlan(
        run="benchmark", engine="tinker", engine_url=url, model_path=chosen.model,
        tokenizer_path=str(chosen.tokenizer.absolute()), output_dir=str(folder / "out"),
        rows=list(range(chosen.rows * chosen.steps)), steps=chosen.steps, rows_per_step=chosen.rows,
        samples_per_row=chosen.samples, max_prompt_length=512, max_response_length=256, lr=chosen.lr,
        save_interval=chosen.steps,
    )  # fmt: skip
    (folder / "plan.json").write_text(plan.model_dump_json())
    command = [str(made.python), "-m", "osmosis.training.trainer", str(folder / "plan.json"), str(folder / "s")]
    environ = {**os.environ, "PYTHONPATH": str(made.code)}
    process = await asyncio.create_subprocess_exec(*command, env=environ, stderr=asyncio.subprocess.DEVNULL)
    try:
        async with TrainerClient(folder / "s") as link:
            await link.wait_up(timeout_s=120)
            return await _followed(link, adding(link) if chosen.base_url else every_other(adding(link)))
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


def every_other(answer: Answer) -> Answer:
    """Rewards every other attempt, so that there is something to send where nothing is ever right."""

    async def rewarded(wanted: Collect) -> Batch:
        batch = await answer(wanted)
        marked = [one.model_copy(update={"reward": float(one.attempt % 2)}) for one in batch.sequences]
        return batch.model_copy(update={"sequences": marked})

    return rewarded


async def _followed(link: TrainerClient, answer: Answer) -> int:
    began = time.monotonic()
    async for event in follow(link, answer):
        if isinstance(event, StepMetrics):
            shown = "  ".join(
                f"{key.partition('/')[2]} {event.values[key]:.4g}" for key in SHOWN if key in event.values
            )
            print(f"step {event.step}: {time.monotonic() - began:.2f} s  {shown}", flush=True)
            began = time.monotonic()
        elif isinstance(event, Notice):
            print(event.message)
        elif isinstance(event, Failed):
            print(f"failed: {event.message}" + (f" ({event.fix})" if event.fix else ""), file=sys.stderr)
            return 1
        elif isinstance(event, Done):
            return 0
    return 1


@contextlib.asynccontextmanager
async def server(chosen: argparse.Namespace) -> AsyncIterator[str]:
    """The one that is named, or one of ours."""
    if chosen.base_url:
        yield chosen.base_url
        return
    os.environ.setdefault("TINKER_API_KEY", "tml-none")
    print("no --base-url: a server without a model, which knows three answers; the times are those of the way there,")
    print("and every other attempt is rewarded, whatever it says")
    async with FakeTinker([[37, 2], [38, 2], [39, 2]]) as ours:
        yield ours.url


async def main() -> int:
    chosen = arguments()
    with tempfile.TemporaryDirectory(prefix="tinker-") as scratch:
        async with server(chosen) as url:
            return await measured(chosen, url, Path(scratch))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
