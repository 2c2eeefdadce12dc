"""A step in plain PyTorch, for `training_step.py`: the same model and recorded rollouts, nothing of ours around them.

`python bare_torch.py steps PLAN` prints seconds per step; `parity PLAN SAMPLES` the largest distance between sampled
logprobs and those of a forward pass; `words PLAN` the milliseconds of rendering a prompt and reading an answer.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

from osmosis.training.protocol.messages import Collect, SampleRequest
from osmosis.training.protocol.plans import TrainerPlan
from osmosis.training.trainer.answering import Prompts
from osmosis.training.trainer.parse_answers import AnswerReader, response_template

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from support.tiny_task import TOOL
from support.trainer_drive import recorded


def steps(plan: TrainerPlan) -> dict[str, Any]:
    """Train on one padded batch a step: every sequence is a row as long as the longest."""
    lora = LoraConfig(r=plan.lora_rank, lora_alpha=plan.lora_alpha, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(plan.model_path, dtype=torch.float32), lora)
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=plan.lr)
    rows, times = list(range(plan.rows_per_step)), []
    for step in range(1, plan.steps + 1):
        sequences = recorded(
            Collect(step=step, kind="train", rows=rows, samples_per_row=plan.samples_per_row)
        ).sequences
        began = time.perf_counter()
        ids = pad_sequence([torch.tensor(list(sequence.token_ids)) for sequence in sequences], batch_first=True)
        masks = [torch.tensor([0] * sequence.prompt_length + list(sequence.mask)) for sequence in sequences]
        own = pad_sequence(masks, batch_first=True)[:, 1:]
        rewards = torch.tensor([sequence.reward or 0.0 for sequence in sequences])
        attention = pad_sequence([torch.ones(len(mask)) for mask in masks], True)
        logits = model(input_ids=ids, attention_mask=attention).logits
        logprobs = torch.log_softmax(logits[:, :-1], -1).gather(2, ids[:, 1:, None]).squeeze(2)
        loss = -(logprobs * own * (rewards - rewards.mean())[:, None]).sum() / own.sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"seconds": statistics.median(times[1:]), "mib": peak}


def parity(plan: TrainerPlan, samples: list[dict[str, Any]]) -> dict[str, Any]:
    model = AutoModelForCausalLM.from_pretrained(plan.model_path, dtype=torch.float32).eval()
    worst = 0.0
    for sample in samples:
        ids = torch.tensor([sample["prompt_ids"] + sample["token_ids"]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(sample["prompt_ids"]) - 1 : -1].float()
        mine = torch.log_softmax(logits, -1).gather(1, ids[0, len(sample["prompt_ids"]) :, None]).squeeze(1)
        worst = max(worst, float((mine - torch.tensor(sample["logprobs"])).abs().max()))
    return {"parity": worst}


def words(plan: TrainerPlan) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(plan.model_path)
    prompts, reader = Prompts(tokenizer), AnswerReader(tokenizer, response_template(tokenizer))
    request = SampleRequest(id="x", messages=[{"role": "user", "content": "17+25"}], tools=[TOOL])
    text = '<tool_call>\n{"name": "add", "arguments": {"a": 17, "b": 25}}\n</tool_call><|im_end|>'
    began, rounds = time.process_time(), 300
    for _ in range(rounds):
        ids = prompts.build(request).token_ids
        reader.read("x", ids, text, [TOOL])
    return {"ms": (time.process_time() - began) * 1000 / rounds}


if __name__ == "__main__":
    torch.set_num_threads(1)
    name, path, *more = sys.argv[1:]
    given = [json.loads(Path(file).read_text()) for file in more]
    print(json.dumps(globals()[name](TrainerPlan.model_validate_json(Path(path).read_bytes()), *given)))
