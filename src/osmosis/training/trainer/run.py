import logging
from typing import Any

import torch
import transformers

from osmosis.training.protocol.messages import Done, ModelFacts
from osmosis.training.protocol.plans import TrainerPlan
from osmosis.training.trainer.answering import Answering
from osmosis.training.trainer.checkpoints import CheckpointStore, load_resume_point, versions
from osmosis.training.trainer.engine import LocalEngine
from osmosis.training.trainer.load_model import Loaded, load
from osmosis.training.trainer.loop import Ranks
from osmosis.training.trainer.parse_answers import AnswerReader, response_template
from osmosis.training.trainer.remote_sampler import RemoteSampler, VllmServers
from osmosis.training.trainer.sampler import ContinuousSampler, end_ids
from osmosis.training.trainer.service import TrainerService


def run(plan: TrainerPlan, service: TrainerService | None) -> Done:
    """Train. `service` is None on every rank but the first. Raise what `service.failed_event` explains."""
    transformers.utils.logging.disable_progress_bar()
    if plan.threads:
        torch.set_num_threads(plan.threads)
    resumed = load_resume_point(plan)
    ranks = Ranks()
    ranks.check(plan.processes)
    is_full = plan.tune == "full" and plan.resume_from
    loaded = load(plan.model_copy(update={"model_path": plan.resume_from}) if is_full else plan, ranks.local)
    store = CheckpointStore(plan) if service is not None else None
    engine = LocalEngine(plan, loaded, ranks, service, store, resumed)
    if service is None:
        return engine.train()
    reader = AnswerReader(loaded.tokenizer, response_template(loaded.tokenizer))
    sampler = _sampler(plan, loaded, reader, engine, service)
    try:
        engine.sampler = service.sampler = sampler
        service.health.model = model_facts(loaded, reader, engine.model, getattr(sampler, "cache_tokens", None))
        service.health.step = resumed.step if resumed else 0
        service.health.state = "training"
        logging.getLogger("osmosis.trainer").info("ready: %s", service.health.model)
        return engine.train()
    finally:
        sampler.stop()


def _sampler(
    plan: TrainerPlan, loaded: Loaded, reader: AnswerReader, engine: LocalEngine, service: TrainerService
) -> ContinuousSampler | RemoteSampler:
    if plan.sampler == "builtin":
        sampler = ContinuousSampler(plan, loaded, reader, module=engine.module)
        sampler.start(service.loop)
        return sampler
    ends = end_ids(engine.module, loaded.tokenizer)
    servers = VllmServers(plan, service.loop, ends)
    engine.use_servers(servers)
    context = getattr(loaded.model.config.get_text_config(), "max_position_embeddings", None)
    answering = Answering(plan, loaded.tokenizer, reader, end_ids=ends, room=context)
    remote = RemoteSampler(answering, servers.complete, concurrency=plan.max_requests)
    remote.start(service.loop, closing=servers.stop)
    return remote


def model_facts(loaded: Loaded, reader: AnswerReader, trained: Any, cache_tokens: int | None) -> ModelFacts:
    weights = list(trained.parameters())
    config = loaded.model.config
    name = torch.cuda.get_device_name(loaded.device) if loaded.device.type == "cuda" else "CPU"
    return ModelFacts(
        architecture=(config.architectures or [type(loaded.model).__name__])[0],
        parameters=sum(_count(weight) for weight in weights if not weight.requires_grad),
        trainable_parameters=sum(weight.numel() for weight in weights if weight.requires_grad),
        context_length=getattr(config.get_text_config(), "max_position_embeddings", None),
        dtype=str(loaded.dtype).removeprefix("torch."),
        device=name,
        chat_template=True,
        tool_calls=reader.reads_by,
        cache_tokens=cache_tokens,
        versions=versions(),
    )


def _count(weight: torch.Tensor) -> int:
    count: int = weight.numel()
    return 2 * count if weight.dtype == torch.uint8 else count  # two of 4 bits in a byte
