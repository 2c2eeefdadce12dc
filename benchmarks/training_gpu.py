"""Measure training on a GPU: models of Qwen3's shape with random weights, rollouts of uneven length.

For each model, the update of one step of LoRA: tokens per second and model FLOPs utilization, sequences packed and one
in a row. Then a whole trainer process whose agents are slow one time in ten: sampled tokens per second, how far sampled
log-probabilities are from the trainer's, and steps per hour with and without `max_staleness`.
Runs in the trainer's
environment (extra `train`).

    python benchmarks/training_gpu.py [--models 0.6b,4b] [--rollouts 128] [--longest 4096] [--steps 6]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from osmosis.training.protocol.client import TrainerClient
from osmosis.training.protocol.messages import (
    Batch,
    Collect,
    Done,
    Failed,
    SampledAnswer,
    SampleRequest,
    Sequence,
    StepMetrics,
)
from osmosis.training.protocol.plans import TrainerPlan
from osmosis.training.trainer.engine import LocalEngine
from osmosis.training.trainer.load_model import Loaded, fuse_kernels
from osmosis.training.trainer.loop import Ranks
from osmosis.training.trainer.packing import Layout

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples" / "train-tiny"))
from tiny_model import tokenizer as tiny_tokenizer

SHAPES = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512},
    "0.6b": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
             "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936},
    "4b": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
           "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936},
}  # fmt: skip
PROMPT = 256


def make_model(name: str, device: torch.device, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(**SHAPES[name], max_position_embeddings=32_768, tie_word_embeddings=True)
    config._attn_implementation = "sdpa"
    torch.set_default_dtype(dtype)
    with device:
        model = Qwen3ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    fuse_kernels(model)
    return model


def make_rollouts(count: int, longest: int, vocabulary: int, samples: int = 8) -> list[list[Sequence]]:
    """Rollouts of a prompt and an answer; lengths are log-normal and cut at `longest`, which one of them has."""
    draw = random.Random(0)
    rollouts = []
    for number in range(count):
        length = longest if number == 0 else min(longest, PROMPT + int(draw.lognormvariate(np.log(longest / 8), 0.8)))
        answer = length - PROMPT
        sequence = Sequence(
            row=number // samples,
            attempt=number % samples,
            token_ids=[draw.randrange(vocabulary) for _ in range(length)],
            prompt_length=PROMPT,
            mask=b"\1" * answer,
            logprobs=[-12.0] * answer,
            reward=float(draw.random() < 0.5),
        )
        rollouts.append([sequence])
    return rollouts


def measure_update(name: str, layout: str, rollouts: list[list[Sequence]], rounds: int) -> dict[str, Any]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = make_model(name, device, dtype)
    plan = TrainerPlan(
        run="bench", model_path="-", output_dir="-", rows=[0], steps=1, rows_per_step=1, max_prompt_length=PROMPT,
        max_response_length=4096, lr=1e-5, lora_rank=32, gradient_checkpointing="auto",
    )  # fmt: skip
    engine = LocalEngine(plan, Loaded(model, None, device, dtype), Ranks(), None, None)
    chosen = engine.layout
    if layout != "chosen":
        engine.layout = cast(Layout, layout)
    times, values = [], {}
    for _ in range(rounds + 1):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        values = engine.update(rollouts)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    seconds = min(times[1:])
    lengths = [len(parts[0].token_ids) for parts in rollouts]
    return {
        "model": name,
        "layout": engine.layout,
        "chosen": chosen,
        "tokens": sum(lengths),
        "seconds": round(seconds, 3),
        "tokens_per_s": round(sum(lengths) / seconds),
        "mfu": values.get("perf/mfu"),
        "budget": engine.budget,
        "gib": round(values["perf/memory_gib"], 1),
    }


def save_model(name: str, folder: Path) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = make_model(name, device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    words = tiny_tokenizer()
    model.generation_config.eos_token_id = words.eos_token_id
    model.generation_config.pad_token_id = words.pad_token_id
    model.save_pretrained(folder)
    words.save_pretrained(folder)


async def measure_run(
    base: Path, folder: Path, staleness: int, rollouts: int, steps: int, answer_tokens: int, slow_s: float
) -> dict[str, Any]:
    plan = TrainerPlan(
        run="bench", model_path=str(base), output_dir=str(folder / f"out-{staleness}"), rows=list(range(1024)),
        steps=steps, rows_per_step=rollouts // 8, samples_per_row=8, max_prompt_length=PROMPT,
        max_response_length=answer_tokens, lr=1e-5, max_staleness=staleness, lora_rank=32,
        gradient_checkpointing="auto", importance="token_truncate", save_interval=10_000,
    )  # fmt: skip
    written, socket = folder / f"plan-{staleness}.json", folder / f"s{staleness}"
    written.write_text(plan.model_dump_json())
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "osmosis.training.trainer", str(written), str(socket), env={**os.environ}
    )
    figures: dict[int, dict[str, float]] = {}
    sampled: list[tuple[int, float]] = []
    ends: list[float] = []

    async with TrainerClient(socket) as link:
        await link.wait_up()

        async def play(step: int, row: int, attempt: int) -> Sequence:
            text = f"{row}+{step}" * 8
            request = SampleRequest(
                id=f"{step}/{row}/{attempt}", messages=[{"role": "user", "content": text}], max_tokens=answer_tokens
            )
            parts = [part async for part in link.stream(request)]
            sample = parts[-1]
            assert isinstance(sample, SampledAnswer)
            if random.Random(request.id).random() < 0.1:
                await asyncio.sleep(slow_s)
            return Sequence(
                row=row, attempt=attempt, token_ids=sample.prompt_ids + sample.token_ids,
                prompt_length=len(sample.prompt_ids), mask=b"\1" * len(sample.token_ids),
                logprobs=sample.logprobs, reward=float(random.Random(request.id + "r").random() < 0.5),
            )  # fmt: skip

        async def collect(event: Collect) -> None:
            began = time.perf_counter()
            every = [(row, attempt) for row in event.rows for attempt in range(event.samples_per_row)]
            sequences = await asyncio.gather(*(play(event.step, row, attempt) for row, attempt in every))
            sampled.append((sum(sequence.sampled for sequence in sequences), time.perf_counter() - began))
            print(f"rollouts of step {event.step}: {sampled[-1]}", file=sys.stderr, flush=True)
            await link.send_batch(Batch(event.step, event.kind, list(sequences)))

        tasks = []
        async for numbered in link.events():
            event = numbered.event
            if isinstance(event, Collect):
                tasks.append(asyncio.create_task(collect(event)))
            elif isinstance(event, StepMetrics):
                ends.append(time.perf_counter())
                figures[event.step] = event.values
                print(f"step {event.step} of {steps}: {json.dumps(event.values)}", file=sys.stderr, flush=True)
            elif isinstance(event, Failed):
                sys.exit(f"the trainer failed: {event}")
            elif isinstance(event, Done):
                await link.acknowledge(numbered.number)
                break
        await asyncio.gather(*tasks)
    await process.wait()
    last = figures[max(figures)]
    return {
        "max_staleness": staleness,
        "step_s": round((ends[-1] - ends[0]) / max(1, len(ends) - 1), 2),
        "sampled_tokens_per_s": round(max(tokens / seconds for tokens, seconds in sampled)),
        "update_s": round(min(values["perf/update_s"] for values in figures.values()), 2),
        **{key: round(last[key], 6) for key in sorted(last) if key.startswith("train/mismatch") or key.endswith("gib")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="0.6b,4b")
    parser.add_argument("--run-models", default="0.6b", help="models of the whole trainer; empty: none")
    parser.add_argument("--rollouts", type=int, default=128)
    parser.add_argument("--longest", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--answer-tokens", type=int, default=512)
    parser.add_argument("--slow-s", type=float, default=8.0, help="what one rollout in ten takes longer")
    parser.add_argument("--layouts", default="chosen,padded")
    parser.add_argument("--only", default="", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.only:  # a process of its own: its memory is its own
        name, layout = chosen.only.split("/")
        vocabulary = SHAPES[name]["vocab_size"]
        rollouts = make_rollouts(chosen.rollouts, chosen.longest, vocabulary)
        print(json.dumps(measure_update(name, layout, rollouts, chosen.rounds)), flush=True)
        return
    for name in chosen.models.split(",") if chosen.models else ():
        for layout in chosen.layouts.split(","):
            command = [sys.executable, __file__, "--only", f"{name}/{layout}", "--rollouts", str(chosen.rollouts)]
            subprocess.run([*command, "--longest", str(chosen.longest), "--rounds", str(chosen.rounds)])
    for name in chosen.run_models.split(",") if chosen.run_models else ():
        with tempfile.TemporaryDirectory() as scratch:
            base = Path(scratch) / name
            save_model(name, base)
            for staleness in (0, 1):
                figures = asyncio.run(
                    measure_run(
                        base, Path(scratch), staleness, chosen.rollouts, chosen.steps, chosen.answer_tokens,
                        chosen.slow_s,
                    )
                )  # fmt: skip
                print(json.dumps({"model": name, **figures}), flush=True)


if __name__ == "__main__":
    main()
