"""`python -m osmosis.training.trainer.serving PLAN SOCKET`: a base model, or one with an adapter, answers `/sample`.

The same sampler as in training, always open, over the same connection: what an evaluation asks is sampled exactly as
the rollouts that the model was trained on. Nothing is trained, and no event is said but the last one.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pydantic import ValidationError as BadShape

from osmosis.base.model_folder import check_model
from osmosis.base.stop_signals import on_stop
from osmosis.training.link import Done, Failed, TrainerPlan
from osmosis.training.link.serving_plan import ServingPlan

from .__main__ import QUIET, end_without
from .service import TrainerService
from .training_failed import TrainingFailed, failed_event

USAGE = "usage: python -m osmosis.training.trainer.serving PLAN SOCKET"
CONTEXT = 32768
"""Of a model that does not say how much it reads."""
LONGEST_ANSWER = 8192


def main(arguments: list[str]) -> int:
    """0 after a stop, 1 for a model that cannot be served, 2 for a plan that cannot be read."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    for name in ("transformers", "ContinuousBatchingLogger"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        plan = ServingPlan.model_validate_json(Path(arguments[0]).read_bytes())
        socket = Path(arguments[1])
    except (OSError, IndexError, BadShape) as error:
        print(f"{USAGE}\n{error}", file=sys.stderr)  # noqa: T201 - a command
        return 2
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    with TrainerService(plan.name, socket) as service:
        on_stop(service.request_stop, signals=(signal.SIGTERM,))
        threading.Thread(target=end_without, args=(os.getppid(),), name="parent", daemon=True).start()
        last = serve(plan, service)
        if isinstance(last, Failed):
            service.finish(last)
    return 0 if isinstance(last, Done) else 1


def serve(plan: ServingPlan, service: TrainerService) -> Done | Failed:
    """Until a stop is asked for."""
    try:
        # Torch takes seconds to import, and the job asks for our health meanwhile.
        running = importlib.import_module(".running", __package__)
        if plan.threads:
            importlib.import_module("torch").set_num_threads(plan.threads)
        as_trained = _sampling_plan(plan)
        loaded = running.load(as_trained)
        module, whole = with_adapter(loaded, plan.adapter_path)
        reader = running.AnswerReader(loaded.tokenizer, running.response_template(loaded.tokenizer))
        sampler = running.ContinuousSampler(as_trained, loaded, reader, module=module)
        sampler.start(service.loop)
        try:
            service.health.model = running.model_facts(loaded, reader, whole, sampler.cache_tokens)
            service.sampler = sampler
            with sampler.open(0):
                service.health.state = "ready"
                logging.getLogger("osmosis.trainer").info("serving: %s", service.health.model)
                service.stop_requested.wait()
        finally:
            sampler.stop()
    except Exception as error:  # the border: whatever it is becomes the last event
        logging.getLogger("osmosis.trainer").exception("serving failed")
        return failed_event(error, 0)
    return Done(step=0, stopped=True)


def _sampling_plan(plan: ServingPlan) -> TrainerPlan:
    """What loading and sampling read of a training plan."""
    context = check_model(Path(plan.model_path)).context_length or CONTEXT
    answer = plan.max_response_length or min(context // 2, LONGEST_ANSWER)
    return TrainerPlan(
        run=plan.name,
        model_path=plan.model_path,
        output_dir="",
        steps=1,
        rows_per_step=1,
        samples_per_row=2,
        lr=1e-6,
        max_prompt_length=plan.max_prompt_length or max(1, context - answer),
        max_response_length=answer,
        concurrency=plan.concurrency,
        precision=plan.precision,
        threads=plan.threads,
    )


def with_adapter(loaded: Any, adapter: str | None) -> tuple[Any, Any]:
    """The module that is sampled, and the model whose weights are counted."""
    if adapter is None:
        return loaded.model.eval().requires_grad_(False), loaded.model
    try:
        kind = json.loads((Path(adapter) / "adapter_config.json").read_text("utf-8")).get("peft_type")
    except (OSError, ValueError, AttributeError) as error:
        raise TrainingFailed(f"{adapter} holds no adapter: {error}", kind="model") from error
    if kind != "LORA" or not (Path(adapter) / "adapter_model.safetensors").is_file():
        raise TrainingFailed(f"{adapter} holds no LoRA adapter in safetensors form", kind="model")
    peft = importlib.import_module("peft")
    try:
        whole = peft.PeftModel.from_pretrained(loaded.model, adapter, is_trainable=False).eval()
    except (ValueError, RuntimeError, KeyError, OSError) as error:
        raise TrainingFailed(f"the adapter in {adapter} does not fit the base model: {error}", kind="model") from error
    _check_placed(peft.get_peft_model_state_dict(whole).keys(), Path(adapter) / "adapter_model.safetensors")
    return whole.get_base_model(), whole


def _check_placed(placed: Collection[str], file: Path) -> None:
    """PEFT leaves out, with a warning, what has no place in the model: the base model would answer in its stead."""
    with importlib.import_module("safetensors").safe_open(file, "pt") as weights:
        given = set(weights.keys())
    if given != set(placed):
        what = f"{len(given ^ set(placed))} of {len(given | set(placed))} weights differ"
        raise TrainingFailed(
            f"the adapter in {file.parent} does not fit the base model: {what}",
            kind="model",
            hint="use the base model that it was trained on",
        )


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # A generation loop that hangs is a thread that nothing can end, and would keep the process.
    os._exit(code)
