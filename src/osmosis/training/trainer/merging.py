"""`python -m osmosis.training.trainer.merging PLAN`: an adapter added into its base model, as a model of its own.

Loaded and added up in fp32, then saved as the plan says. What the merged model says of a short text is compared with
what base and adapter say, and the largest difference is reported. The answer is a file beside the plan.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError as BadShape

from osmosis.base.files import write_text
from osmosis.base.model_folder import CONFIG, INDEX, model_files
from osmosis.training.link import TrainerPlan
from osmosis.training.link.serving_plan import MergePlan, MergeResult

from .__main__ import QUIET
from .loading import load
from .serving import with_adapter
from .training_failed import failed_event

USAGE = "usage: python -m osmosis.training.trainer.merging PLAN"
PROBE = [{"role": "user", "content": "Name three prime numbers, then say why 1 is none of them."}]
WRITTEN = (CONFIG, INDEX, "generation_config.json")
"""What saving writes itself; everything else of the base model is copied as it is."""


def main(arguments: list[str]) -> int:
    """0 when it is merged, 1 when it cannot be, 2 for a plan that cannot be read."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        file = Path(arguments[0])
        plan = MergePlan.model_validate_json(file.read_bytes())
    except (OSError, IndexError, BadShape) as error:
        print(f"{USAGE}\n{error}", file=sys.stderr)  # noqa: T201 - a command
        return 2
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        result = merge(plan)
    except Exception as error:  # the border: whatever it is becomes the answer
        logging.getLogger("osmosis.trainer").exception("merging failed")
        failed = failed_event(error, 0)
        result = MergeResult(failure=failed.message, fix=failed.fix)
    write_text(file.with_name(MergeResult.FILE), result.model_dump_json())
    return 1 if result.failure else 0


def merge(plan: MergePlan) -> MergeResult:
    """The folder of the new model, whole. Raises `TrainingFailed`."""
    base, output = Path(plan.model_path), Path(plan.output_dir)
    loaded = load(_loading_plan(plan))
    _, whole = with_adapter(loaded, plan.adapter_path)
    ids = _probe(loaded)
    expected = _said(whole, ids)
    merged = whole.merge_and_unload()
    dtype = _dtype(plan, merged)
    merged.to(dtype)
    merged.config.dtype = dtype
    difference = float((_said(merged, ids) - expected).abs().max())
    output.mkdir(parents=True, exist_ok=True)
    merged.save_pretrained(output, safe_serialization=True)
    for path in model_files(base):
        if path.suffix != ".safetensors" and path.name not in WRITTEN:
            shutil.copyfile(path, output / path.name)
    parameters = sum(one.numel() for one in merged.parameters())
    return MergeResult(difference=difference, dtype=str(dtype).removeprefix("torch."), parameters=parameters)


def _loading_plan(plan: MergePlan) -> TrainerPlan:
    """What loading reads of a training plan; nothing is sampled."""
    return TrainerPlan(
        run="merge",
        model_path=plan.model_path,
        output_dir="",
        steps=1,
        rows_per_step=1,
        samples_per_row=2,
        lr=1e-6,
        max_prompt_length=1,
        max_response_length=1,
        precision="fp32",
    )


def _dtype(plan: MergePlan, merged: Any) -> Any:
    """Of the saved weights: as asked, else as the base model's own files."""
    named = {"fp32": torch.float32, "bf16": torch.bfloat16}
    if plan.dtype in named:
        return named[plan.dtype]
    own = plan.own_dtype
    return getattr(torch, own) if own in ("float32", "bfloat16", "float16") else torch.float32


def _probe(loaded: Any) -> Any:
    text = loaded.tokenizer.apply_chat_template(PROBE, tokenize=False, add_generation_prompt=True)
    return loaded.tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"].to(loaded.device)


def _said(model: Any, ids: Any) -> Any:
    """Log-probabilities of every next token."""
    with torch.no_grad():
        return torch.log_softmax(model(input_ids=ids).logits.float(), dim=-1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
