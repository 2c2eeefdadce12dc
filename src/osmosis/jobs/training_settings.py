"""From a training config to what is run: the plan of the trainer, and how a rollout is run.

Pure: reads the base model's `config.json` and asks for GPUs, starts nothing. Every key of `[training]`, `[sampling]`,
`[checkpoints]` and `[advanced]` ends in one of the two, or in the driver.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from osmosis._version import __version__
from osmosis.records.config import TrainingConfig
from osmosis.records.plan import EvalPlan, ModelSpec, Timeouts
from osmosis.records.rollout import Category
from osmosis.records.run import JobSpec
from osmosis.records.training_plan import TrainingPlan, plan_training
from osmosis.training.link import TrainerPlan

from .job import setup_failed
from .training_examples import Examples

LOGITS_BYTES = 4 << 30
"""Of one piece of a step: with a real vocabulary they are what fills a GPU."""
VOCABULARY = 150_000
"""Where a model does not say its own."""
EVERY_LINEAR = "all-linear"


def trainer_plan(
    config: TrainingConfig, spec: JobSpec, *, models_dir: Path, gpus: int, examples: Examples | None = None
) -> TrainerPlan:
    """The trainer's plan; `examples` of `method = "sft"`. Raises `JobFailed` for a dataset that fills no step."""
    training, sampling, advanced = config.training, config.sampling, config.advanced
    on_rows = plan_training(config, spec.rows, examples=examples.count if examples else 0)
    if on_rows.steps == 0:
        raise _too_small(on_rows) if examples is None else _too_few(examples, on_rows)
    processes = _processes(on_rows.at_once, gpus)
    pieces = advanced.gradient_accumulation or _pieces(config, _folder(config, spec), on_rows.at_once, processes)
    return TrainerPlan(
        run=spec.run_name,
        engine=advanced.engine,
        engine_url=advanced.base_url if advanced.engine == "tinker" else None,
        sampler=advanced.sampler,
        sampler_url=advanced.base_url if advanced.sampler == "vllm" else None,
        method=advanced.method,
        examples_path=str(examples.path) if examples else None,
        model_path=spec.model_path or config.experiment.model_path,
        output_dir=str(models_dir),
        rows=on_rows.rows,
        validation_rows=on_rows.validation_rows,
        steps=on_rows.steps,
        rows_per_step=on_rows.batch,
        samples_per_row=on_rows.samples,
        validation_samples=advanced.validation_samples,
        eval_interval=config.checkpoints.eval_interval,
        save_interval=config.checkpoints.checkpoint_save_freq,
        keep=config.checkpoints.keep,
        max_prompt_length=training.max_prompt_length,
        max_response_length=training.max_response_length,
        temperature=sampling.rollout_temperature,
        top_p=sampling.rollout_top_p,
        lora_rank=advanced.lora_rank,
        lora_alpha=advanced.lora_alpha,
        lora_targets=[] if advanced.lora_targets == [EVERY_LINEAR] else advanced.lora_targets,
        loss=advanced.loss,
        kl=advanced.kl,
        clip=advanced.clip,
        clip_high=advanced.clip_high,
        scale_rewards=advanced.scale_rewards,
        num_iterations=advanced.num_iterations,
        lr=training.lr,
        schedule=advanced.schedule,
        warmup_steps=advanced.warmup_steps,
        gradient_accumulation=pieces,
        gradient_checkpointing=advanced.gradient_checkpointing,
        precision=advanced.precision,
        seed=advanced.seed,
        processes=processes,
    )


def rollout_plan(config: TrainingConfig, spec: JobSpec) -> EvalPlan:
    """How a rollout of training is run: as an eval's, but for the model, which is the one being trained."""
    experiment, training = config.experiment, config.training
    params = {"temperature": config.sampling.rollout_temperature, "top_p": config.sampling.rollout_top_p}
    return EvalPlan(
        name=spec.run_name,
        agent=f"rollouts/{experiment.rollout}/{experiment.entrypoint}",
        model=ModelSpec(name=experiment.model_path, kind="trained", params=params, seed=config.advanced.seed),
        dataset=experiment.dataset,
        concurrency=training.rollout_batch_size * training.n_samples_per_prompt,
        timeouts=Timeouts(agent_s=training.agent_workflow_timeout_s, score_s=training.grader_timeout_s),
        provenance={"commit_sha": spec.commit_sha, "osmosis": __version__},
    )


def _folder(config: TrainingConfig, spec: JobSpec) -> Path:
    return Path(spec.model_path or config.experiment.model_path)


def _processes(per_step: int, gpus: int) -> int:
    """One for each GPU, as far as a step can be shared out evenly."""
    return next((count for count in range(gpus, 1, -1) if per_step % count == 0), 1)


def _pieces(config: TrainingConfig, model: Path, per_step: int, processes: int) -> int:
    """Into how many pieces a step is cut, so that the logits of one fit."""
    of_process = per_step // processes
    length = config.training.max_prompt_length + config.training.max_response_length
    at_once = max(1, LOGITS_BYTES // (4 * _vocabulary(model) * length))
    return next(
        pieces for pieces in range(1, of_process + 1) if of_process % pieces == 0 and of_process <= pieces * at_once
    )


def as_begun(plan: TrainerPlan, fingerprint: str, *, gpus: int) -> TrainerPlan:
    """The plan of this fingerprint, where only another machine's GPUs made it another one than `plan`; else `plan`.
    Raises `JobFailed` when this machine has fewer GPUs than it takes."""
    if plan.fingerprint == fingerprint:
        return plan
    for processes, pieces in _ways_to_cut(plan):
        other = plan.model_copy(update={"processes": processes, "gradient_accumulation": pieces})
        if other.fingerprint != fingerprint:
            continue
        if processes > max(1, gpus):
            what = f"this run was begun on {processes} GPUs, and this machine has {gpus}"
            fix = f"[advanced.resources] gpus = {processes} keeps a run on such machines"
            raise setup_failed(what, fix=fix, category=Category.BAD_REQUEST)
        return other
    return plan


def _ways_to_cut(plan: TrainerPlan) -> Iterator[tuple[int, int]]:
    """Every `(processes, pieces)` that a machine could have cut a step of this plan into."""
    at_once = plan.rows_per_step * (1 if plan.method == "sft" else plan.samples_per_row)
    for processes in range(1, at_once + 1):
        of_process = at_once // processes
        if at_once % processes == 0:
            divisors = {pieces for pieces in range(1, of_process + 1) if of_process % pieces == 0}
            yield from ((processes, pieces) for pieces in sorted({*divisors, plan.gradient_accumulation}))


def _vocabulary(model: Path) -> int:
    try:
        said = json.loads((model / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    except (OSError, ValueError, KeyError, TypeError):
        return VOCABULARY
    return said if isinstance(said, int) and said > 0 else VOCABULARY


def _too_small(plan: TrainingPlan) -> Exception:
    rows, held_out = len(plan.rows), len(plan.validation_rows)
    beside = f", {held_out} more are held out for validation" if held_out else ""
    return setup_failed(
        f"the dataset is too small: {rows} rows are left to train on{beside}, and one step takes {plan.batch}",
        fix=f"lower [training].rollout_batch_size to {rows} or less, add rows, or lower [advanced].validation_rows",
        category=Category.BAD_REQUEST,
    )


def _too_few(examples: Examples, plan: TrainingPlan) -> Exception:
    return setup_failed(
        f"there are {examples.count} rollouts to learn from, and one step takes {plan.batch}",
        fix="lower [training].rollout_batch_size or [advanced].min_score, or name a run with more passed rollouts",
        category=Category.BAD_REQUEST,
    )
