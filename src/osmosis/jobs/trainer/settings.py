"""The trainer's plan, the rollout plan and the examples of a run, from its training config."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from osmosis._version import __version__
from osmosis.base.files import replacing
from osmosis.base.jsonable import JsonObject
from osmosis.errors import LeaseLost, NetworkError, OsmosisError
from osmosis.jobs.context import JobContext, setup_failure
from osmosis.records.api.workers import StoredExample
from osmosis.records.config.run_config import TrainingConfig
from osmosis.records.run.job import JobSpec
from osmosis.records.run.plan import EvalPlan, ModelSpec, ProgramSpec, Timeouts
from osmosis.records.run.rollout import Category
from osmosis.records.run.training import TrainingPlan, plan_training
from osmosis.training.protocol.messages import Example
from osmosis.training.protocol.plans import Importance, TrainerPlan

EVERY_LINEAR = "all-linear"
FILE = "examples.jsonl"
MOST_BYTES = 16 << 30
_UNITS = {"sft": "rollouts", "dpo": "pairs of rollouts"}


def trainer_plan(
    config: TrainingConfig, spec: JobSpec, *, models_dir: Path, gpus: int, examples: "Examples | None" = None
) -> TrainerPlan:
    training, sampling, advanced = config.training, config.sampling, config.advanced
    on_rows = plan_training(config, spec.rows, sizes=spec.sizes, examples=examples.count if examples else 0)
    if on_rows.steps == 0:
        raise _too_small(on_rows, examples)
    fields = set(TrainerPlan.model_fields)
    same = {**training.model_dump(include=fields), **advanced.model_dump(include=fields)}
    return TrainerPlan.model_validate(
        {
            **same,
            "run": spec.run_name,
            "engine_url": advanced.base_url if advanced.engine == "tinker" else None,
            "sampler_urls": [advanced.base_url] if advanced.sampler == "vllm" and advanced.base_url else [],
            "examples_path": str(examples.path) if examples else None,
            "model_path": spec.model_path or config.experiment.model_path,
            **(_adapter_settings(Path(spec.adapter_path)) if spec.adapter_path else {}),
            "base_model": config.experiment.model_path,
            "teacher_path": spec.teacher_path or advanced.teacher,
            "output_dir": str(models_dir),
            "rows": on_rows.rows,
            "validation_rows": on_rows.validation_rows,
            "environments": on_rows.environments if config.mix else [],
            "steps": on_rows.steps,
            "rows_per_step": on_rows.batch,
            "samples_per_row": on_rows.samples,
            "eval_interval": config.checkpoints.eval_interval,
            "save_interval": config.checkpoints.checkpoint_save_freq,
            "keep": config.checkpoints.keep,
            "temperature": sampling.rollout_temperature,
            "top_p": sampling.rollout_top_p,
            "lora_targets": [] if advanced.lora_targets == [EVERY_LINEAR] else advanced.lora_targets,
            "importance": _importance(config),
            "gradient_accumulation": advanced.gradient_accumulation or 1,
            "processes": max(1, gpus),
        }
    )


def rollout_plan(config: TrainingConfig, spec: JobSpec) -> EvalPlan:
    experiment, training = config.experiment, config.training
    params = {"temperature": config.sampling.rollout_temperature, "top_p": config.sampling.rollout_top_p}
    return EvalPlan(
        name=spec.run_name,
        agent=experiment.agent,
        model=ModelSpec(name=experiment.model_path, kind="trained", params=params, seed=config.advanced.seed),
        dataset=experiment.dataset,
        concurrency=training.rollout_batch_size * training.n_samples_per_prompt,
        timeouts=Timeouts(agent_s=training.agent_workflow_timeout_s, score_s=training.grader_timeout_s),
        program=ProgramSpec.from_config(config),
        provenance={"commit_sha": spec.commit_sha, "osmosis": __version__},
    )


def _adapter_settings(folder: Path) -> JsonObject:
    adapter = json.loads((folder / "adapter_config.json").read_text("utf-8"))
    return {"adapter_path": str(folder), "lora_rank": adapter["r"], "lora_alpha": adapter["lora_alpha"]}


def _importance(config: TrainingConfig) -> Importance:
    advanced = config.advanced
    if advanced.importance != "auto":
        return advanced.importance
    is_on_policy = advanced.sampler == "builtin" and not advanced.max_staleness and advanced.oversample == 1
    return "off" if is_on_policy else "token_truncate"


def _too_small(plan: TrainingPlan, examples: "Examples | None") -> Exception:
    rows, held_out = len(plan.rows), len(plan.validation_rows)
    if examples is None:
        note = f", {held_out} more are held out for validation" if held_out else ""
        message = f"the dataset is too small: {rows} rows are left to train on{note}, and one step takes {plan.batch}"
        lower = f"lower [training].rollout_batch_size to {plan.largest_batch} or less"
        fix = f"{lower}, add rows, or lower [advanced].validation_rows"
    else:
        message = f"there are {examples.count} examples to learn from, and one step takes {plan.batch}"
        fix = "lower [training].rollout_batch_size or [advanced].min_score, or name a run with more passed rollouts"
    return setup_failure(message, fix=fix, category=Category.BAD_REQUEST)


@dataclass(frozen=True, slots=True)
class Examples:
    path: Path
    count: int


async def load_examples(context: JobContext, config: TrainingConfig) -> Examples:
    path = context.work_dir / FILE
    if not path.exists():
        try:
            await _fetch(context.reporter.iterate_examples(), path)
        except (LeaseLost, NetworkError):
            raise
        except OsmosisError as problem:
            message = f"the rollouts to learn from cannot be had: {problem.message}"
            raise setup_failure(message, fix=problem.hint, category=Category.BAD_REQUEST) from problem
    count = await asyncio.to_thread(_lines, path)
    context.log.write(
        "examples", f"{count} {_UNITS[config.advanced.method]} of {config.advanced.from_run} to learn from"
    )
    return Examples(path, count)


async def _fetch(examples: AsyncIterator[StoredExample], path: Path) -> None:
    size = 0
    with replacing(path, durable=True) as out:
        async for example in examples:
            if not example.messages:
                continue
            worse = Example(messages=example.rejected, tools=example.tools) if example.rejected else None
            line = Example(messages=example.messages, tools=example.tools, rejected=worse).to_line()
            size += len(line)
            if size > MOST_BYTES:
                message = f"the rollouts to learn from have more than {MOST_BYTES >> 30} GB"
                fix = "raise [advanced].min_score, or name a smaller run in from_run"
                raise setup_failure(message, fix=fix, category=Category.BAD_REQUEST)
            out.write(line)


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)
