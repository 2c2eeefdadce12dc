"""`python -m osmosis.training.trainer.merge_adapter PLAN`: merge an adapter in fp32; the answer, a file beside the
plan, says how far log-probabilities differ from base and adapter."""

import logging
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from osmosis.base.files import write_text
from osmosis.base.model_folder import CONFIG, INDEX, list_model_files
from osmosis.training.protocol.plans import MergePlan, MergeResult, TrainerPlan
from osmosis.training.trainer.__main__ import read_plan
from osmosis.training.trainer.load_model import load
from osmosis.training.trainer.serve_model import with_adapter
from osmosis.training.trainer.service import failed_event

USAGE = "usage: python -m osmosis.training.trainer.merge_adapter PLAN"
PROBE = [{"role": "user", "content": "Name three prime numbers, then say why 1 is none of them."}]
WRITTEN = (CONFIG, INDEX, "generation_config.json")


def main(arguments: list[str]) -> int:
    """Return 0 when it is merged, 1 when it cannot be, 2 for a plan that cannot be read."""
    plan = read_plan(MergePlan, arguments, 1, USAGE)
    if plan is None:
        return 2
    try:
        result = merge(plan)
    except Exception as error:  # the border: whatever it is becomes the answer
        logging.getLogger("osmosis.trainer").exception("merging failed")
        failed = failed_event(error, 0)
        result = MergeResult(failure=failed.message, fix=failed.fix)
    write_text(Path(arguments[0]).with_name(MergeResult.FILE), result.model_dump_json())
    return 1 if result.failure else 0


def merge(plan: MergePlan) -> MergeResult:
    base, output = Path(plan.model_path), Path(plan.output_dir)
    loaded = load(
        TrainerPlan.for_sampling("merge", plan.model_path, max_prompt_length=1, max_response_length=1, precision="fp32")
    )
    _, adapted = with_adapter(loaded, plan.adapter_path)
    text = loaded.tokenizer.apply_chat_template(PROBE, tokenize=False, add_generation_prompt=True)
    ids = loaded.tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"].to(loaded.device)
    expected = _read_logprobs(adapted, ids)
    merged = adapted.merge_and_unload() if plan.adapter_path else adapted
    name = {"fp32": "float32", "bf16": "bfloat16"}.get(plan.dtype, plan.own_dtype)
    dtype = getattr(torch, name) if name in ("float32", "bfloat16", "float16") else torch.float32
    merged.to(dtype)
    merged.config.dtype = dtype
    difference = float((_read_logprobs(merged, ids) - expected).abs().max())
    output.mkdir(parents=True, exist_ok=True)
    merged.save_pretrained(output, safe_serialization=True)
    for path in list_model_files(base):
        if path.suffix != ".safetensors" and path.name not in WRITTEN:
            shutil.copyfile(path, output / path.name)
    parameters = sum(weight.numel() for weight in merged.parameters())
    return MergeResult(difference=difference, dtype=str(dtype).removeprefix("torch."), parameters=parameters)


def _read_logprobs(model: Any, ids: Any) -> Any:
    with torch.no_grad():
        return torch.log_softmax(model(input_ids=ids).logits.float(), dim=-1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
