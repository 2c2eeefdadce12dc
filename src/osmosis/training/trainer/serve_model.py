"""`python -m osmosis.training.trainer.serve_model PLAN SOCKET`: answer `/sample` with the sampler of training."""

import importlib
import json
import logging
import signal
import sys
from pathlib import Path
from typing import Any

from osmosis.base.model_folder import check_model
from osmosis.base.processes import die_with_parent, on_stop
from osmosis.training.protocol.messages import Done, Failed
from osmosis.training.protocol.plans import ServingPlan, TrainerPlan
from osmosis.training.trainer.__main__ import exit_now, read_plan
from osmosis.training.trainer.service import TrainerService, TrainingFailed, failed_event

USAGE = "usage: python -m osmosis.training.trainer.serve_model PLAN SOCKET"
CONTEXT = 32768
LONGEST_ANSWER = 8192


def main(arguments: list[str]) -> int:
    """Return 0 after a stop, 1 for a model that cannot be served, 2 for a plan that cannot be read."""
    plan = read_plan(ServingPlan, arguments, 2, USAGE)
    if plan is None:
        return 2
    with TrainerService(plan.name, Path(arguments[1])) as service:
        die_with_parent()
        on_stop(service.request_stop, signals=(signal.SIGTERM,))
        last = serve(plan, service)
        if isinstance(last, Failed):
            service.finish(last)
    return 0 if isinstance(last, Done) else 1


def serve(plan: ServingPlan, service: TrainerService) -> Done | Failed:
    try:
        # Torch takes seconds to import, and the job asks for our health meanwhile.
        running = importlib.import_module(".run", __package__)
        if plan.threads:
            importlib.import_module("torch").set_num_threads(plan.threads)
        as_trained = _sampling_plan(plan)
        loaded = running.load(as_trained)
        module, adapted = with_adapter(loaded, plan.adapter_path)
        reader = running.AnswerReader(loaded.tokenizer, running.response_template(loaded.tokenizer))
        sampler = running.ContinuousSampler(as_trained, loaded, reader, module=module)
        sampler.start(service.loop)
        try:
            service.health.model = running.model_facts(loaded, reader, adapted, sampler.cache_tokens)
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
    context = check_model(Path(plan.model_path)).context_length or CONTEXT
    answer = plan.max_response_length or min(context // 2, LONGEST_ANSWER)
    return TrainerPlan.for_sampling(
        plan.name,
        plan.model_path,
        max_prompt_length=plan.max_prompt_length or max(1, context - answer),
        max_response_length=answer,
        max_requests=plan.concurrency,
        precision=plan.precision,
        threads=plan.threads,
    )


def with_adapter(loaded: Any, adapter: str | None) -> tuple[Any, Any]:
    if not adapter:
        return loaded.model.eval().requires_grad_(False), loaded.model
    try:
        kind = json.loads((Path(adapter) / "adapter_config.json").read_text("utf-8")).get("peft_type")
    except (OSError, ValueError, AttributeError) as error:
        raise TrainingFailed(f"{adapter} holds no adapter: {error}") from error
    if kind != "LORA" or not (Path(adapter) / "adapter_model.safetensors").is_file():
        raise TrainingFailed(f"{adapter} holds no LoRA adapter in safetensors form")
    peft = importlib.import_module("peft")
    try:
        adapted = peft.PeftModel.from_pretrained(
            loaded.model, adapter, is_trainable=False, autocast_adapter_dtype=False
        ).eval()
    except (ValueError, RuntimeError, KeyError, OSError) as error:
        raise TrainingFailed(f"the adapter in {adapter} does not fit the base model: {error}") from error
    # Check that every weight has a place: PEFT leaves others out with a warning, and the base model would answer.
    placed = peft.get_peft_model_state_dict(adapted).keys()
    file = Path(adapter) / "adapter_model.safetensors"
    with importlib.import_module("safetensors").safe_open(file, "pt") as weights:
        names = set(weights.keys())
    if names != set(placed):
        message = f"{len(names ^ set(placed))} of {len(names | set(placed))} weights differ"
        message = f"the adapter in {file.parent} does not fit the base model: {message}"
        raise TrainingFailed(message, hint="use the base model that it was trained on")
    return adapted.get_base_model(), adapted


if __name__ == "__main__":
    exit_now(main(sys.argv[1:]))
