"""What has to be looked at where torch is: run by the trainer's Python, prints one JSON object, name by name.

`python checks.py NAME,NAME MODEL_FOLDER SCRATCH_FOLDER`; each function that takes two folders is a name.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch.utils.flop_counter import FlopCounterMode

from osmosis.errors import ModelError
from osmosis.training.protocol.messages import (
    Batch,
    Collect,
    Example,
    HeldTokens,
    SampledAnswer,
    SampleDelta,
    SampleRequest,
    Sequence,
)
from osmosis.training.protocol.plans import TrainerPlan, rows_of_step
from osmosis.training.trainer import losses
from osmosis.training.trainer.answering import Prompts, Totals, tokenize_example
from osmosis.training.trainer.checkpoints import CheckpointStore, load_resume_point
from osmosis.training.trainer.engine import LocalEngine
from osmosis.training.trainer.load_model import load, load_teacher
from osmosis.training.trainer.loop import Ranks
from osmosis.training.trainer.losses import CHUNK
from osmosis.training.trainer.packing import Part, count_flops, find_peak, measure_utilization, pack, plant
from osmosis.training.trainer.parse_answers import AnswerReader, response_template
from osmosis.training.trainer.sampler import ContinuousSampler
from osmosis.training.trainer.service import TrainerService, TrainingFailed
from support.tiny_task import TOOL, conversation, problem
from support.trainer_drive import recorded

torch.set_num_threads(1)


def plan(model: str, folder: Path, **changes: Any) -> TrainerPlan:
    values: dict[str, Any] = {
        "run": "check", "model_path": model, "output_dir": str(folder), "rows": list(range(8)), "steps": 2,
        "rows_per_step": 4, "samples_per_row": 4, "max_prompt_length": 60, "max_response_length": 60, "lr": 2e-3,
        "save_interval": 100, "seed": 7,
    }  # fmt: skip
    return TrainerPlan(**{**values, **changes})


def ask(name: str, text: str = "17+25", **more: Any) -> SampleRequest:
    return SampleRequest(id=name, messages=[{"role": "user", "content": text}], tools=[TOOL], **more)


# --------------------------------------------------------------------------------------------------- the sampler


class Bench:
    """A sampler with an event loop of its own, as the service gives it one."""

    def __init__(self, the_plan: TrainerPlan, **more: Any) -> None:
        self.plan, self.loaded = the_plan, load(the_plan)
        self.reader = AnswerReader(self.loaded.tokenizer, response_template(self.loaded.tokenizer))
        self.sampler = ContinuousSampler(the_plan, self.loaded, self.reader, **more)
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.sampler.start(self.loop)

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(120)

    async def one(self, request: SampleRequest) -> SampledAnswer:
        async with contextlib.aclosing(self.sampler.stream(request)) as parts:
            async for part in parts:
                if isinstance(part, SampledAnswer):
                    return part
        raise AssertionError("no answer")

    async def many(self, requests: list[SampleRequest]) -> list[SampledAnswer]:
        return list(await asyncio.gather(*map(self.one, requests)))

    def error(self, request: SampleRequest) -> str:
        try:
            self.run(self.one(request))
        except ModelError as error:
            return f"{error.category}: {error.message}"
        return "none"


def sampling(model: str, folder: Path) -> dict[str, Any]:
    bench = Bench(plan(model, folder, max_requests=16))
    questions = [ask(f"q{n}", f"{10 + n}+{20 + n}", seed=n, temperature=(1.0, 0.7)[n % 2]) for n in range(64)]
    found: dict[str, Any] = {"training_before": bench.loaded.model.train().training}
    with bench.sampler.open(3):
        found["training_while_open"] = bench.loaded.model.training
        samples = bench.run(bench.many(questions))
        order = list(range(64))
        random.Random(1).shuffle(order)
        again = dict(zip(order, bench.run(bench.many([questions[n] for n in order])), strict=True))
        found["same_in_another_batch"] = all(again[n].token_ids == samples[n].token_ids for n in range(64))
        found["different_seeds_differ"] = len({tuple(one.token_ids) for one in samples}) > 8
        found["greedy"] = len({tuple(bench.run(bench.one(ask(f"g{n}", temperature=0))).token_ids) for n in range(4)})
        found["too_long"] = bench.error(ask("long", "1" * 500))
        found["after_too_long"] = bench.error(ask("next"))
        image = [{"role": "user", "content": [{"type": "image"}]}]
        found["bad_message"] = bench.error(SampleRequest(id="i", messages=image))
        short = bench.run(bench.one(ask("short", max_tokens=1)))
        found["short"] = [len(short.token_ids), short.finish_reason]
        found["cancel"] = bench.run(_cancel(bench))
        found["stream"] = bench.run(_stream(bench))
    found["training_after"] = bench.loaded.model.training
    found["parity"] = _parity(bench, questions, samples)
    found["step"] = samples[0].step
    end = bench.loaded.tokenizer.eos_token_id
    found["ends_kept"] = all(one.token_ids[-1] == end for one in samples if one.finish_reason != "length")
    found["closed"] = bench.run(_closed(bench))
    bench.sampler.stop()
    return found


def _parity(bench: Bench, questions: list[SampleRequest], samples: list[SampledAnswer]) -> float:
    """The largest distance between a sampled logprob and that of one plain forward pass."""
    worst = 0.0
    bench.loaded.model.eval()
    for question, one in zip(questions, samples, strict=True):
        ids = torch.tensor([one.prompt_ids + one.token_ids])
        with torch.no_grad():
            logits = bench.loaded.model(input_ids=ids).logits[0, len(one.prompt_ids) - 1 : -1].float()
        every = torch.log_softmax(logits / (question.temperature or 1.0), -1)
        mine = every.gather(1, ids[0, len(one.prompt_ids) :, None]).squeeze(1)
        worst = max(worst, float((mine - torch.tensor(one.logprobs)).abs().max()))
    return worst


async def _cancel(bench: Bench) -> dict[str, int]:
    """Requests that are left while they are sampled, and what is left of them."""

    async def leave(number: int) -> None:
        async with contextlib.aclosing(
            bench.sampler.stream(ask(f"leave{number}", stream=True, temperature=2.0))
        ) as parts:
            async for _ in parts:
                return

    await asyncio.gather(*(leave(n) for n in range(8)))
    await asyncio.sleep(0.5)
    handlers = bench.sampler._manager.output_router.result_handlers
    scheduler = bench.sampler._manager.batch_processor.scheduler
    after = await bench.one(ask("after"))
    return {"handlers": len(handlers), "active": len(scheduler.active_requests), "answered": len(after.token_ids) > 0}


async def _stream(bench: Bench) -> dict[str, Any]:
    same, shown = [], []
    for seed in range(24):  # words, calls, and calls that cannot be read
        text = ""
        async for part in bench.sampler.stream(ask(f"s{seed}", seed=seed, stream=True)):
            if isinstance(part, SampleDelta):
                text += part.content
            else:
                same.append(text == (part.content or ""))
                shown.append(bool(text and part.tool_calls))
    stop = await bench.one(ask("stop", stop=["add"], temperature=0.0))
    return {
        "same": all(same),
        "calls_hidden": not any(shown),
        "stop_reason": stop.finish_reason,
        "stopped_before": "add" not in str(stop.content),
    }


async def _closed(bench: Bench) -> bool:
    """A request outside of a step waits."""
    waiting = asyncio.ensure_future(bench.one(ask("waits")))
    await asyncio.sleep(0.3)
    done = waiting.done()
    waiting.cancel()
    return not done


def stuck(model: str, folder: Path) -> dict[str, Any]:
    """A generation loop that breaks, and one that hangs, under requests: they fail and the next one is answered."""
    bench = Bench(plan(model, folder, max_requests=4), stuck_s=2.0)
    found = {}
    with bench.sampler.open(1):
        runner = bench.sampler._manager.batch_processor.model_runner

        def breaks(*_: object) -> None:
            raise RuntimeError("the GPU fell off")

        runner._sample = breaks
        found["broken"] = bench.error(ask("a"))
        found["after_broken"] = bench.error(ask("b"))
        runner = bench.sampler._manager.batch_processor.model_runner
        runner._sample = lambda *_: time.sleep(30)
        began = time.monotonic()
        found["hanging"] = bench.error(ask("c"))
        found["noticed_after_s"] = time.monotonic() - began
        found["after_hanging"] = bench.error(ask("d"))
    return found


def answers(model: str, folder: Path) -> dict[str, Any]:
    tokenizer = load(plan(model, folder)).tokenizer
    template = response_template(tokenizer)
    prompt = Prompts(tokenizer).render([{"role": "user", "content": "x"}], None)
    texts = {
        "words": "42<|im_end|>",
        "call": '<tool_call>\n{"name": "add", "arguments": {"a": 3, "b": 4}}\n</tool_call><|im_end|>',
        "words_and_calls": 'so <tool_call>\n{"name": "add", "arguments": {"a": 3}}\n</tool_call>\n'
        '<tool_call>\n{"name": "add", "arguments": {"a": 4}}\n</tool_call><|im_end|>',
        "thought": "<think>\nhm\n</think>\n\nhello<|im_end|>",
        "bad_json": '<tool_call>\n{"name": "add", "arguments": {"a": 3,}}\n</tool_call><|im_end|>',
        "no_function": "<tool_call>[1]</tool_call><|im_end|>",
        "text_arguments": '<tool_call>\n{"name": "add", "arguments": "{}"}\n</tool_call><|im_end|>',
        "cut_off": '<tool_call>\n{"name": "add", "argu',
    }
    found: dict[str, Any] = {}
    for by, reader in (("template", AnswerReader(tokenizer, template)), ("json", AnswerReader(tokenizer, None))):
        for name, text in texts.items():
            answer = reader.read("r", prompt, text, [TOOL])
            calls = [(call.function["name"], json.loads(call.function["arguments"])) for call in answer.tool_calls]
            found[f"{by}/{name}"] = [answer.content, answer.reasoning, calls, answer.parse, answer.malformed_calls]
        plain = reader.read("r", prompt, texts["call"], None)
        found[f"{by}/no_tools"] = [len(plain.tool_calls), "<tool_call>" in str(plain.content)]
    return found


def prompts(model: str, folder: Path) -> dict[str, Any]:
    """The next prompt begins with the very tokens that were sampled, even where rendering them again differs."""
    tokenizer = load(plan(model, folder)).tokenizer
    made = Prompts(tokenizer)
    first = made.render([{"role": "user", "content": "1+2"}], [TOOL])
    odd = '<tool_call>\n{"name":"add","arguments":{"a":1,"b":2}}\n</tool_call>'
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    talk = [
        {"role": "user", "content": "1+2"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "3"},
    ]
    found = {}
    for name, end in (("ended", "<|im_end|>"), ("cut_off", "")):
        held = first + tokenizer.encode(odd + end, add_special_tokens=False)
        request = SampleRequest(id="x", messages=talk, tools=[TOOL], held=HeldTokens(messages=2, token_ids=held))
        ids, kept = made.build(request).token_ids, made.build(request).held
        plain = made.build(request.model_copy(update={"held": None})).token_ids
        found[name] = {
            "kept": kept,
            "begins": ids[: len(held)] == held,
            "plain_does_not": plain[: len(held)] != held,
            "rest": tokenizer.decode(ids[len(held) :]),
        }
    request = SampleRequest(id="x", messages=talk, held=HeldTokens(messages=9, token_ids=first))
    found["covers_too_many"] = made.build(request).held
    return found


# --------------------------------------------------------------------------------------------------- the update


class Replay(TrainerService):
    """Answers every collect at once, from a function."""

    def __init__(self, answer: Callable[[Collect], Batch]) -> None:
        super().__init__("replay", Path("unused"))
        self._answer = answer
        self._answers: dict[tuple[int, str], Batch] = {}

    def ask(self, collect: Collect) -> None:
        self.emit(collect)
        self._answers[collect.step, collect.kind] = self._answer(collect)

    def wait(self, step: int, kind: Any) -> Batch:
        return self._answers.pop((step, kind))


class Silent:
    """A sampler that nobody asks."""

    totals = Totals()

    @contextlib.contextmanager
    def open(self, step: int, *, keep: bool = False) -> Iterator[None]:
        yield


def train(the_plan: TrainerPlan, answer: Callable[[Collect], Batch] = recorded) -> dict[str, Any]:
    """Trains on what is recorded; the adapter's weights."""
    service, store = Replay(answer), CheckpointStore(the_plan)
    engine = LocalEngine(the_plan, load(the_plan), Ranks(), service, store, load_resume_point(the_plan))
    engine.sampler = Silent()
    engine.train()
    return {"weights": weights(the_plan), "events": [one.event for one in service.events.after(0)]}


def weights(the_plan: TrainerPlan, step: int | None = None) -> dict[str, Any]:
    folder = Path(the_plan.output_dir) / f"step-{step or the_plan.steps:06d}"
    loaded: dict[str, Any] = load_file(folder / "adapter_model.safetensors")
    return loaded


def apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[key] - other[key]).abs().max()) for key in one)


def edited(change: Callable[[Sequence], Sequence]) -> Callable[[Collect], Batch]:
    def answer(collect: Collect) -> Batch:
        batch = recorded(collect)
        return replace(batch, sequences=[change(one) for one in batch.sequences])

    return answer


def _failed(one: Sequence, tokens: int, reward: float | None = None) -> Sequence:
    """The second attempt of every row failed, after having said that many tokens."""
    if one.attempt != 1:
        return one
    update = {
        "token_ids": [30] * 5 + [40] * tokens, "mask": [1] * tokens, "logprobs": [-1.0] * tokens, "reward": reward,
    }  # fmt: skip
    return replace(one, **update)


def updates(model: str, folder: Path) -> dict[str, Any]:
    """What moves the weights, and what does not."""

    def at(name: str, **changes: Any) -> TrainerPlan:
        return plan(model, folder / name, **changes)

    base = train(at("base"))
    found: dict[str, Any] = {}
    start = train(at("frozen"), edited(lambda sequence: replace(sequence, mask=[0] * len(sequence.mask))))["weights"]
    found["moved"] = apart(base["weights"], start)
    equal = train(at("equal"), edited(lambda one: replace(one, reward=1.0)))
    found["equal_rewards_move"] = apart(equal["weights"], start)
    found["masks_alone_move"] = max(float(value.abs().max()) for key, value in start.items() if "lora_B" in key)
    few = train(at("few"), edited(lambda one: _failed(one, 3)))
    many = train(at("many"), edited(lambda one: _failed(one, 40)))
    found["failed_tokens_matter"] = apart(few["weights"], many["weights"])
    found["failures_matter"] = apart(few["weights"], base["weights"])
    zero = train(at("zero"), edited(lambda one: _failed(one, 3, reward=0.0)))
    found["a_failure_is_no_zero"] = apart(zero["weights"], few["weights"])
    pieces = train(at("pieces", gradient_accumulation=4))
    found["accumulation"] = apart(pieces["weights"], base["weights"])
    found["metrics"] = sorted(next(e.values for e in base["events"] if e.type == "metrics"))
    for loss in ("grpo", "dr_grpo"):
        found[loss] = apart(train(at(loss, loss=loss))["weights"], base["weights"])
    again = train(at("iterations", num_iterations=2, kl=0.1, gradient_checkpointing=True))
    values = [e.values for e in again["events"] if e.type == "metrics"]
    found["iterations"] = {
        "metrics": len(values),
        "kl": "train/kl" in values[0],
        "apart": apart(again["weights"], base["weights"]),
    }
    off = edited(lambda one: replace(one, logprobs=[value * 3 for value in one.logprobs]))
    found["own_samples_are_on_policy"] = apart(train(at("on"), off)["weights"], base["weights"])
    server = {"importance": "token_truncate"}
    served, other = train(at("served", **server)), train(at("served-off", **server), off)
    found["a_servers_logprobs_matter"] = apart(served["weights"], other["weights"])
    found["forks"] = _forks(model, folder)
    found["half_precision"] = _half_precision(model, folder)
    return found


def _half_precision(model: str, folder: Path) -> dict[str, Any]:
    """Steps smaller than what bf16 can tell apart, in one life and in two."""
    small: dict[str, Any] = {"precision": "bf16", "lr": 1e-6, "steps": 4, "save_interval": 2}
    names = ("bf16", "bf16-again")
    train(plan(model, folder / names[0], **small))
    from_step = str(folder / names[0] / "step-000002")
    train(plan(model, folder / names[1], **small, resume_from=from_step))
    straight, again = (load_file(folder / name / "step-000004" / "optimizer.safetensors") for name in names)
    half = load_file(Path(from_step) / "optimizer.safetensors")
    masters = [name for name in straight if name.endswith(".weight")]
    adapter = weights(plan(model, folder / names[0], **small))
    return {
        "types": sorted({str(value.dtype) for value in adapter.values()}),
        "moved": min(float((straight[name] - half[name]).abs().max()) for name in masters),
        "resumed": apart(straight, again),
    }


def continued(model: str, folder: Path) -> dict[str, Any]:
    """A run that begins with another one's adapter, of another rank than the plan's."""
    first = train(plan(model, folder / "first", lora_rank=4, lora_alpha=8))["weights"]
    start = {"adapter_path": str(folder / "first" / "step-000002")}
    frozen = edited(lambda sequence: replace(sequence, mask=[0] * len(sequence.mask)))
    still = train(plan(model, folder / "still", **start), frozen)["weights"]
    moved = train(plan(model, folder / "moved", **start))["weights"]
    settings = [
        json.loads((folder / name / "step-000002" / "adapter_config.json").read_text()) for name in ("first", "moved")
    ]
    return {
        "still": apart(still, first),
        "moved": apart(moved, first),
        "same_settings": all(
            settings[0][key] == settings[1][key] for key in ("r", "lora_alpha", "base_model_name_or_path")
        ),
    }


def sharded(model: str, folder: Path) -> dict[str, Any]:
    """Two steps of two processes that divide the base model between them, and of one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_share, (model, folder, port), nprocs=2)
    _share(0, model, folder, 0, world=1)
    alone, shared = (load_file(folder / f"of-{world}" / "adapter_model.safetensors") for world in (1, 2))
    return {"apart": apart(alone, shared), "shares": [float((folder / f"share-{rank}").read_text()) for rank in (0, 1)]}


def _share(rank: int, model: str, folder: Path, port: int, world: int = 2) -> None:
    environ = {"RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in environ.items()})
    the_plan = plan(
        model, folder, processes=world, shard=True, sampler="vllm", sampler_urls=["http://127.0.0.1:1"], kl=0.1,
        micro_batch_tokens=150, gradient_checkpointing=True,
    )  # fmt: skip
    ranks = Ranks()
    ranks.check(world)
    engine = LocalEngine(the_plan, load(the_plan), ranks, None, None)
    for step in (1, 2):
        batch = recorded(Collect(step=step, kind="train", rows=[0, 1, 2, 3], samples_per_row=4))
        engine.update([[sequence] for sequence in batch.sequences])
        engine.step = step
    if world == 2:
        frozen = [weight for weight in engine.model.parameters() if not weight.requires_grad]
        local = sum(weight.to_local().numel() for weight in frozen)
        (folder / f"share-{rank}").write_text(str(local / sum(weight.numel() for weight in frozen)))
    if rank == 0:
        engine.model.save_pretrained(folder / f"of-{world}")


def _forks(model: str, folder: Path) -> dict[str, Any]:
    """A rollout that is cut into two parts, of which the second repeats the first one's tokens as its prompt."""

    def forked(collect: Collect) -> Batch:
        batch, parts = recorded(collect), []
        for one in batch.sequences:
            cut = len(one.mask) // 2
            at = one.prompt_length + cut
            first = replace(one, token_ids=one.token_ids[:at], mask=one.mask[:cut], logprobs=one.logprobs[:cut])
            rest = replace(one, part=1, prompt_length=at, mask=one.mask[cut:], logprobs=one.logprobs[cut:])
            parts += [first, rest]
        return replace(batch, sequences=parts)

    found = {}
    for loss in ("dapo", "grpo"):
        whole = train(plan(model, folder / f"whole-{loss}", loss=loss))
        forks = train(plan(model, folder / f"forks-{loss}", loss=loss), forked)
        values = next(e.values for e in forks["events"] if e.type == "metrics")
        found[loss] = apart(forks["weights"], whole["weights"])
        sampled = sum(sum(one.mask) for one in recorded(forks["events"][0]).sequences)
        found["trained_share"] = values["train/trained_tokens"] / sampled
    return found


def chunks(model: str, folder: Path) -> dict[str, Any]:
    """The head a chunk at a time: the same numbers and gradients as over all logits, also where they are capped."""
    the_plan = plan(model, folder)
    found: dict[str, Any] = {}
    saved: list[Any] = []
    for name in ("plain", "capped"):
        loaded = load(the_plan)
        if name == "capped":
            forward = loaded.model.forward

            def capped(*arguments: Any, forward: Any = forward, **named: Any) -> Any:
                output = forward(*arguments, **named)
                output.logits = 5 * torch.tanh(output.logits / 5)
                return output

            loaded.model.forward = capped
        engine = LocalEngine(the_plan, loaded, Ranks(), Replay(recorded), CheckpointStore(the_plan))
        ids = np.array([random.Random(1).randrange(20, 100) for _ in range(90)], dtype=np.int32)
        [batch] = pack(plant([[Part(ids, np.arange(1, 90), np.zeros(89))]], "trees", 500), "trees", 500)
        results = []
        for chunk in (CHUNK, 16):
            losses.CHUNK = chunk
            engine.optimizer.zero_grad()
            saved.clear()
            with torch.autograd.graph.saved_tensors_hooks(
                lambda kept: saved.append(kept.shape[-2:]) or kept, lambda x: x
            ):
                logprobs, entropy, hits = engine.predict(batch)
            (logprobs * torch.linspace(-1, 1, 89)).sum().backward()
            gradient = torch.cat([weight.grad.flatten() for weight in engine.weights if weight.grad is not None])
            results.append(torch.cat([logprobs.detach(), entropy, hits.float(), gradient]))
        losses.CHUNK = CHUNK
        with torch.no_grad():
            logits = engine.model(input_ids=batch.input_ids).logits[0, :-1]
        alone = torch.log_softmax(logits, -1).gather(1, batch.targets[:, None]).squeeze(1)
        found[name] = {
            "is_chunked": engine.predict.is_chunked,
            "keeps_logits": logits.shape in saved,
            "apart": float((results[0] - results[1]).abs().max()),
            "from_logits": float((results[1][:89] - alone).abs().max()),
        }
    return found


def flops(model: str, folder: Path) -> dict[str, Any]:
    """Beside PyTorch's own count of the products of weights, without their recomputation."""
    the_plan = plan(model, folder)
    engine = LocalEngine(the_plan, load(the_plan), Ranks(), Replay(recorded), CheckpointStore(the_plan))
    ids = np.arange(64, dtype=np.int32) + 20
    trees = plant([[Part(ids, np.arange(60, 64), np.zeros(4))]], "trees", 500)
    [batch] = pack(trees, "trees", 500)
    with FlopCounterMode(display=False) as counter:
        engine.predict(batch)[0].sum().backward()
    products = sum(count for name, count in counter.get_flop_counts()["Global"].items() if str(name) == "aten.mm")
    config, head = engine.module.config, engine.module.get_output_embeddings()
    attention = 12 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * 64 * 65 / 2
    first = engine.module.model.layers[0].self_attn
    unneeded = sum(  # nothing before the first layer learns
        2 * layer.base_layer.weight.numel() + 2 * layer.lora_A["default"].weight.numel()
        for layer in (first.q_proj, first.k_proj, first.v_proj)
    )
    again = 2 * head.weight.numel() * (4 + 1)  # for the gradient, and the row that the model itself reads
    names = {"NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H100 PCIe": 756e12, "NVIDIA L40S": 362e12, "Tesla T4": None}
    return {
        "counted": count_flops(engine.module, trees) - attention,
        "measured": products - again + 64 * unneeded,
        "peaks": all(find_peak(name) == peak for name, peak in names.items()),
        "on_cpu": measure_utilization(1e9, 1.0, engine.loaded, 1),
    }


def preferences(model: str, folder: Path) -> dict[str, Any]:
    """DPO: loss and gradient beside those of pairs that go through the model alone, and whether it learns."""
    draw, lines = random.Random(4), []
    for _ in range(32):
        a, b = problem(draw)
        better, worse = conversation(a, b, draw, 1.0), conversation(a, b, draw, 0.0)
        lines.append(Example(messages=better, tools=[TOOL], rejected=Example(messages=worse, tools=[TOOL])))
    path = folder / "pairs.jsonl"
    path.write_bytes(b"".join(line.to_line() for line in lines))
    changes: dict[str, Any] = {
        "method": "dpo", "examples_path": str(path), "rows": [], "rows_per_step": 8, "beta": 0.3, "lr": 1e-3,
        "micro_batch_tokens": 150,
    }  # fmt: skip
    the_plan = plan(model, folder / "dpo", max_response_length=200, steps=12, **changes)
    engine = LocalEngine(the_plan, load(the_plan), Ranks(), Replay(recorded), CheckpointStore(the_plan))
    generator = torch.Generator().manual_seed(3)
    for name, weight in engine.model.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(0, 0.02, generator=generator)
    examples = [engine.examples[row] for row in rows_of_step(range(32), 8, 1, the_plan.seed)]

    def likelihood(side: Any) -> Any:
        ids = torch.tensor([side.token_ids])
        every = torch.log_softmax(engine.model(input_ids=ids).logits[0, :-1].float(), -1)
        return (every.gather(1, ids[0, 1:, None]).squeeze(1) * torch.tensor(side.mask[1:])).sum()

    losses = []
    for better, worse in examples:
        with torch.no_grad(), engine.model.disable_adapter():
            base = likelihood(better) - likelihood(worse)
        losses.append(-torch.sigmoid(0.3 * (likelihood(better) - likelihood(worse) - base)).log())
    torch.stack(losses).mean().backward()
    expected = [weight.grad.clone() for weight in engine.weights]
    engine._step_optimizer = lambda: 0.0
    values = engine.update([])
    largest = max(float(gradient.abs().max()) for gradient in expected)
    wrong = max(float((weight.grad - own).abs().max()) for weight, own in zip(engine.weights, expected, strict=True))
    events = train(the_plan)["events"]
    curves = [event.values for event in events if event.type == "metrics"]
    return {
        "loss": abs(values["train/loss"] - float(torch.stack(losses).mean())),
        "gradient": wrong / largest,
        "curves": {key: [values[f"train/{key}"] for values in curves]
                   for key in ("loss", "reward_margin", "preference_accuracy")},
    }  # fmt: skip


def teacher(model: str, folder: Path) -> dict[str, Any]:
    """A better adder of the same family, and what is said of one with other tokens."""
    loaded, draw = load(plan(model, folder)), random.Random(2)
    prompts = Prompts(loaded.tokenizer)
    optimizer = torch.optim.AdamW(loaded.model.parameters(), lr=1e-3)
    for _ in range(40):
        loss = torch.zeros(())
        for _ in range(8):
            talk = Example(messages=conversation(*problem(draw), draw, 1.0), tools=[TOOL])
            ids, mask = tokenize_example(talk, prompts, loaded.tokenizer.eos_token_id)
            logits = loaded.model(input_ids=torch.tensor([ids])).logits[0, :-1]
            targets = torch.tensor(ids[1:]).masked_fill(torch.tensor(mask[1:]) == 0, -100)
            loss = loss + torch.nn.functional.cross_entropy(logits, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name in ("teacher", "stranger"):
        loaded.model.save_pretrained(folder / name)
        loaded.tokenizer.save_pretrained(folder / name)
    tokens = (folder / "stranger" / "tokenizer.json").read_text()
    (folder / "stranger" / "tokenizer.json").write_text(tokens.replace('"add"', '"sub"'))
    try:
        load_teacher(plan(model, folder, loss="distill", teacher_path=str(folder / "stranger")), loaded)
        refused = "not"
    except TrainingFailed as error:
        refused = error.message
    return {"folder": str(folder / "teacher"), "refused": refused}


def diverged(model: str, folder: Path) -> dict[str, Any]:
    """A weight that is no number any more: the run ends before the optimizer spreads it."""
    the_plan = plan(model, folder / "diverged")
    service, store = Replay(recorded), CheckpointStore(the_plan)
    engine = LocalEngine(the_plan, load(the_plan), Ranks(), service, store, load_resume_point(the_plan))
    engine.sampler = Silent()
    with torch.no_grad():
        next(weight for name, weight in engine.model.named_parameters() if "lora_A" in name).fill_(float("inf"))
    try:
        engine.train()
    except TrainingFailed as error:
        return {"kind": error.kind, "message": error.message, "hint": error.hint, "step": engine.step}
    return {"kind": "none"}


def packing(model: str, folder: Path) -> dict[str, Any]:
    """One rollout of 800 tokens among 64 short ones: how much is computed, and whether it is the same as alone."""
    draw = random.Random(5)

    def part(length: int, shared: Any = ()) -> Part:
        ids = np.array([*shared, *(draw.randrange(20, 100) for _ in range(length))], dtype=np.int32)
        return Part(ids, np.arange(len(shared) or 1, len(ids)), np.zeros(len(ids) - (len(shared) or 1)))

    trees = plant([[part(800)], *([part(draw.randint(15, 25))] for _ in range(64))], "trees", 16384)
    batches = pack(trees, "trees", 16384)
    the_plan = plan(model, folder)
    engine = LocalEngine(the_plan, load(the_plan), Ranks(), Replay(recorded), CheckpointStore(the_plan))
    first = part(30)
    second = part(12, first.token_ids[:20])
    forked = [first, second, part(9, second.token_ids[:26]), part(14)]

    def logits(rollouts: list[list[Part]], layout: Any) -> Any:
        together = pack(plant(rollouts, layout, 500), layout, 500)
        return torch.cat([engine.predict.logits(batch) for batch in together])

    with torch.no_grad(), engine.sampling_mode():
        whole = logits([forked, [part(5)]], "trees")
        alone = torch.cat([logits([[one]], "padded") for one in forked])
        flat = torch.cat([engine.predict.logits(batch) for batch in pack(plant([forked], "flat", 500), "flat", 500)])
    apart = [float((whole[: len(alone)] - alone).abs().max())]
    by_length = sorted(forked, key=lambda one: -len(one.token_ids))
    apart.append(float((flat - torch.cat([logits([[one]], "padded") for one in by_length])).abs().max()))
    computed = sum(batch.input_ids.numel() for batch in batches)
    return {
        "padded_share": computed / sum(batch.tokens for batch in batches),
        "same_logits": max(apart),
        "tree_tokens": [plant([forked], "trees", 500)[0].length, sum(len(one.token_ids) for one in forked)],
    }


def order(model: str, folder: Path) -> dict[str, Any]:
    """The rows of every step are those of the pure function, and each sequence keeps its place in its group."""
    the_plan = plan(model, folder / "order", steps=5, rows=[5, 3, 9, 12, 7, 1, 0], rows_per_step=3)
    events = train(the_plan)["events"]
    asked = [event.rows for event in events if event.type == "collect"]
    return {"asked": asked, "expected": [rows_of_step(the_plan.rows, 3, step, the_plan.seed) for step in range(1, 6)]}


# --------------------------------------------------------------------------------------------------- loading


def unusable(model: str, folder: Path) -> dict[str, Any]:
    """Base models that cannot be used: what is said of each."""

    def without_template(base: Path) -> None:
        (base / "chat_template.jinja").unlink()

    def without_weights(base: Path) -> None:
        (base / "model.safetensors").rename(base / "pytorch_model.bin")

    def without_a_shard(base: Path) -> None:
        index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
        (base / "model.safetensors").rename(base / "model-1.safetensors")
        (base / "model.safetensors.index.json").write_text(json.dumps(index))

    def cut_short(base: Path) -> None:
        (base / "model.safetensors").write_bytes((base / "model.safetensors").read_bytes()[:-1000])

    def with_code(base: Path) -> None:
        config = json.loads((base / "config.json").read_text())
        (base / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModelForCausalLM": "x.Y"}}))

    def without_config(base: Path) -> None:
        (base / "config.json").unlink()

    def without_an_end(base: Path) -> None:
        config = json.loads((base / "tokenizer_config.json").read_text())
        config.pop("eos_token")
        (base / "tokenizer_config.json").write_text(json.dumps(config))

    cases: dict[str, tuple[Callable[[Path], None], dict[str, Any]]] = {
        one.__name__: (one, {})
        for one in (
            without_template,
            without_weights,
            without_a_shard,
            cut_short,
            with_code,
            without_config,
            without_an_end,
        )
    }
    cases["too_large"] = (lambda base: None, {"max_memory_bytes": 1000})
    cases["too_long"] = (lambda base: None, {"max_response_length": 1000})
    found = {}
    for name, (spoil, changes) in cases.items():
        base = folder / name
        shutil.copytree(model, base)
        spoil(base)
        try:
            load(plan(str(base), folder, **changes))
            found[name] = ["none", "", ""]
        except TrainingFailed as error:
            found[name] = [error.kind, error.message, error.hint]
    return found


if __name__ == "__main__":
    names, model_folder, scratch = sys.argv[1:]
    results = {name: globals()[name](model_folder, Path(scratch)) for name in names.split(",")}
    sys.stdout.write(json.dumps(results) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a generation loop that was made to hang would keep the process
