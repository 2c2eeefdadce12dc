"""Measure a training step beside plain PyTorch: the same model and recorded rollouts, in the same minutes.

Per turn: HTTP from the agent to the gate, the gate, the link to the trainer, rendering, reading and stitching, in CPU
milliseconds of all processes together, without generation. Per step: our trainer and a padded step in plain PyTorch
(`bare_torch.py`) update on the same recorded rollouts. Then how far sampled logprobs are from a forward pass, and
memory. Makes the trainer's environment and the tiny model on the first run.

    python benchmarks/training_step.py [--cache FOLDER] [--steps 6] [--rollouts 128]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import psutil

from osmosis.jobs.trainer.environment import TrainerEnvironment
from osmosis.serve.client.model_proxy import ModelProxy
from osmosis.serve.client.rollout_endpoint import RolloutEndpoint
from osmosis.training.models import TrainedModel
from osmosis.training.protocol.client import TrainerClient
from osmosis.training.protocol.messages import Batch, Collect, SampleRequest, StepMetrics
from osmosis.training.protocol.plans import TrainerPlan

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from support import RUN
from support.tiny_task import TOOL, TRAIN_TINY, run_tool
from support.trainer_drive import follow, replay
from support.trainer_environment import trainer_environment

HERE = Path(__file__).parent
GENERATION_MS = 50.0
LIMIT_MS = 3.0
LIMIT_SHARE = 0.1
TURNS = 2


def cpu(pid: int) -> float:
    """Seconds of CPU of a process so far."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


async def one_rollout(session: aiohttp.ClientSession, gate: ModelProxy, model: TrainedModel, number: int) -> int:
    """Two turns of an agent over HTTP, then what was stitched of it."""
    model.start(f"r{number}", "train-000001")
    endpoint: RolloutEndpoint = gate.open_rollout(f"r{number}")
    messages: list[dict[str, object]] = [{"role": "user", "content": "17+25"}]
    headers = {"Authorization": f"Bearer {endpoint.bearer}"}
    address = f"{endpoint.chat_completions_url}/chat/completions"
    for _ in range(TURNS):
        body = {"model": "policy", "messages": messages, "tools": [TOOL], "max_tokens": 80}
        async with session.post(address, json=body, headers=headers) as response:
            message = (await response.json())["choices"][0]["message"]
        messages.append(message)
        for call in message.get("tool_calls") or ():
            content = run_tool(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    gate.close_rollout(endpoint)
    return sum(len(part.token_ids) for part in model.take(endpoint.rollout_id).parts)


async def turns(plan: TrainerPlan, folder: Path, rollouts: int, rounds: int = 5) -> list[float]:
    """CPU milliseconds of a turn in each round, with a trainer whose tokens cost nothing."""
    written, socket = folder / "fake.json", folder / "f"
    written.write_text(plan.model_dump_json())
    process = await asyncio.create_subprocess_exec(*RUN, "fake_trainer", str(written), str(socket))
    found = []
    async with TrainerClient(socket) as link:
        await link.wait_up()
        model = TrainedModel(link, "policy")
        gate = ModelProxy(model)
        await gate.open()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            for round_ in range(rounds + 1):
                before = cpu(os.getpid()) + cpu(process.pid)
                first = round_ * rollouts
                await asyncio.gather(*(one_rollout(session, gate, model, first + n) for n in range(rollouts)))
                found.append((cpu(os.getpid()) + cpu(process.pid) - before) * 1000 / (rollouts * TURNS))
        await gate.close()
    process.terminate()
    await process.wait()
    return found[1:]  # the first one opens the connections


async def our_steps(
    plan: TrainerPlan, folder: Path, trainer: TrainerEnvironment, environ: dict[str, str]
) -> tuple[float, int, list[dict[str, object]]]:
    """Median seconds from one step's end to the next, peak MiB, and samples of the untrained adapter."""
    written, socket = folder / "plan.json", folder / "s"
    written.write_text(plan.model_dump_json())
    command = [str(trainer.python), "-m", "osmosis.training.trainer", str(written), str(socket)]
    process = await asyncio.create_subprocess_exec(*command, env=environ)
    samples: list[dict[str, object]] = []
    ends: list[float] = []
    async with TrainerClient(socket) as link:

        async def answer(collect: Collect) -> Batch:
            if collect.step == 1:
                asked = (
                    SampleRequest(id=str(n), messages=[{"role": "user", "content": f"{10 + n}+20"}], tools=[TOOL])
                    for n in range(64)
                )
                samples.extend(answer.model_dump() for answer in await asyncio.gather(*map(link.sample, asked)))
            return await replay(collect)

        await link.wait_up()
        peak = 0
        async for event in follow(link, answer):
            if isinstance(event, StepMetrics):
                ends.append(time.perf_counter())
                peak = (await link.health()).peak_memory_bytes
    await process.wait()
    return statistics.median(b - a for a, b in itertools.pairwise(ends)), peak >> 20, samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "osmosis-benchmarks")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rollouts", type=int, default=128)
    chosen = parser.parse_args()
    chosen.cache.mkdir(parents=True, exist_ok=True)
    trainer = trainer_environment(chosen.cache)
    quiet = {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONWARNINGS": "ignore"}
    environ = {**os.environ, **quiet, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(trainer.code)}
    base = chosen.cache / "tiny-base"
    if not (base / "tokenizer_config.json").exists():
        subprocess.run([str(trainer.python), str(TRAIN_TINY / "tiny_model.py"), str(base)], env=environ, check=True)

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        plan = TrainerPlan(
            run="bench", model_path=str(base), output_dir=str(folder / "out"), rows=list(range(chosen.rollouts // 8)),
            steps=chosen.steps, rows_per_step=chosen.rollouts // 8, samples_per_row=8, max_prompt_length=200,
            max_response_length=100, lr=1e-3, threads=1, save_interval=10_000,
        )  # fmt: skip

        def bare(name: str, *more: str) -> dict[str, float]:
            command = [str(trainer.python), str(HERE / "bare_torch.py"), name, str(folder / "plan.json"), *more]
            said = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, text=True)
            found: dict[str, float] = json.loads(said.stdout.splitlines()[-1])
            return found

        per_turn = statistics.median(asyncio.run(turns(plan, folder, chosen.rollouts)))
        seconds, mib, samples = asyncio.run(our_steps(plan, folder, trainer, environ))
        alone = bare("steps")
        (folder / "samples.json").write_text(json.dumps(samples))
        parity = bare("parity", str(folder / "samples.json"))["parity"]
        words = bare("words")["ms"]

    turn = per_turn + words
    share = turn / (turn + GENERATION_MS)
    parts = f"HTTP, gate, link and stitching {per_turn:.2f}, rendering and reading {words:.2f}"
    print(f"a turn   {turn:6.2f} ms of CPU: {parts}")
    print(f"         {share:6.1%} of a turn whose generation takes {GENERATION_MS:.0f} ms")
    print(f"a step   {seconds:6.3f} s of {chosen.rollouts} rollouts, {alone['seconds']:.3f} s in plain PyTorch")
    print(f"parity   {parity:.1e}: the largest distance of a sampled logprob from a forward pass")
    print(f"memory   {mib} MiB with our trainer and its sampler, {alone['mib']:.0f} MiB in plain PyTorch")
    if turn > LIMIT_MS or share > LIMIT_SHARE:
        sys.exit(f"more than {LIMIT_MS} ms a turn, or {LIMIT_SHARE:.0%} of it")


if __name__ == "__main__":
    main()
