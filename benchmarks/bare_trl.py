"""TRL alone, for `training_step.py`: the same model, options and recorded rollouts, nothing of ours around them.

`python bare_trl.py steps PLAN` prints seconds per step; `parity PLAN SAMPLES` the largest distance between sampled
logprobs and those of a forward pass; `words PLAN` the milliseconds of rendering a prompt and reading an answer.
"""

from __future__ import annotations

import itertools
import json
import logging
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from osmosis.testing.tiny_task import TOOL
from osmosis.training.protocol import Collect, SampleRequest, TrainerPlan
from osmosis.training.trainer.parse_answers import AnswerReader
from osmosis.training.trainer.prompts import Prompts

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from support.trainer_drive import recorded


def steps(plan: TrainerPlan) -> dict[str, Any]:
    times: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            times.append(time.perf_counter())

    def rollout(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        step = trainer.state.global_step + 1
        rows = list(range(plan.rows_per_step))
        batch = recorded(Collect(step=step, kind="train", rows=rows, samples_per_row=plan.samples_per_row))
        ones = batch.sequences
        return {
            "prompt_ids": [one.token_ids[: one.prompt_length] for one in ones],
            "completion_ids": [one.token_ids[one.prompt_length :] for one in ones],
            "logprobs": [one.logprobs for one in ones],
            "env_mask": [one.mask for one in ones],
            "given": [one.reward for one in ones],
        }

    def reward(completions: Any, given: list[float], **_: Any) -> list[float]:
        return given

    size = plan.rows_per_step * plan.samples_per_row
    arguments = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=plan.steps,
        per_device_train_batch_size=size,
        num_generations=plan.samples_per_row,
        learning_rate=plan.lr,
        lr_scheduler_type="constant",
        beta=0.0,
        loss_type=plan.loss,
        bf16=False,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        max_completion_length=plan.max_response_length,
    )
    rows = [{"prompt": str(n)} for n in range(plan.steps * plan.rows_per_step)]
    lora = LoraConfig(r=plan.lora_rank, lora_alpha=plan.lora_alpha, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(plan.model_path, dtype=torch.float32),
        args=arguments,
        processing_class=AutoTokenizer.from_pretrained(plan.model_path),
        reward_funcs=reward,
        train_dataset=Dataset.from_list(rows),
        peft_config=lora,
        rollout_func=rollout,
    )
    trainer.add_callback(Clock())
    trainer.train()
    between = [b - a for a, b in itertools.pairwise(times)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"seconds": statistics.median(between), "mib": peak}


def parity(plan: TrainerPlan, samples: list[dict[str, Any]]) -> dict[str, Any]:
    model = AutoModelForCausalLM.from_pretrained(plan.model_path, dtype=torch.float32).eval()
    worst = 0.0
    for one in samples:
        ids = torch.tensor([one["prompt_ids"] + one["token_ids"]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(one["prompt_ids"]) - 1 : -1].float()
        mine = torch.log_softmax(logits, -1).gather(1, ids[0, len(one["prompt_ids"]) :, None]).squeeze(1)
        worst = max(worst, float((mine - torch.tensor(one["logprobs"])).abs().max()))
    return {"parity": worst}


def words(plan: TrainerPlan) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(plan.model_path)
    prompts, reader = Prompts(tokenizer), AnswerReader(tokenizer, tokenizer.response_template)
    request = SampleRequest(id="x", messages=[{"role": "user", "content": "17+25"}], tools=[TOOL])
    text = '<tool_call>\n{"name": "add", "arguments": {"a": 17, "b": 25}}\n</tool_call><|im_end|>'
    began, rounds = time.process_time(), 300
    for _ in range(rounds):
        ids, _ = prompts.of(request)
        reader.read("x", ids, text, [TOOL])
    return {"ms": (time.process_time() - began) * 1000 / rounds}


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.getLogger("trl").setLevel(logging.ERROR)
    name, path, *more = sys.argv[1:]
    given = [json.loads(Path(file).read_text()) for file in more]
    print(json.dumps(globals()[name](TrainerPlan.model_validate_json(Path(path).read_bytes()), *given)))
