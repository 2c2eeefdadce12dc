"""Every key of a training config has an effect: this fails for a new one that nobody reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from osmosis.jobs.context import JobFailed
from osmosis.jobs.kinds import training as training_work
from osmosis.jobs.kinds.training import engine_secret
from osmosis.jobs.sandboxes import JobSandbox
from osmosis.jobs.server import stages as server_stages
from osmosis.jobs.trainer.settings import Examples, rollout_plan, trainer_plan
from osmosis.jobs.trainer.vllm import GpuSplit
from osmosis.platform.runs import submit
from osmosis.platform.scheduling import job_spec, queue
from osmosis.platform.training import service
from osmosis.records.config.advanced import TrainingAdvanced
from osmosis.records.config.run_config import Checkpoints, Sampling, Training, TrainingConfig
from osmosis.records.run.job import JobSpec
from osmosis.training.protocol.plans import TrainerPlan

SERVER = {"sampler": "vllm", "base_url": "http://127.0.0.1:1"}
STARTED = {"sampler": "vllm"}
OTHERWISE: dict[str, dict[str, tuple[Any, dict[str, Any]]]] = {
    "training": {
        "lr": (1e-3, {}), "total_epochs": (2, {}), "n_samples_per_prompt": (4, {}), "rollout_batch_size": (8, {}),
        "max_prompt_length": (100, {}), "max_response_length": (100, {}), "agent_workflow_timeout_s": (7.0, {}),
        "grader_timeout_s": (7.0, {}),
    },
    "sampling": {"rollout_temperature": (0.7, {}), "rollout_top_p": (0.7, {})},
    "checkpoints": {"eval_interval": (3, {}), "checkpoint_save_freq": (3, {}), "keep": (3, {})},
    "advanced": {
        "network": ("gate", {}), "engine": ("tinker", {"base_url": "http://127.0.0.1:1"}),
        "sampler": ("vllm", {"base_url": "http://127.0.0.1:1"}), "base_url": ("http://127.0.0.1:2", SERVER),
        "api_key_env": ("KEY", SERVER), "method": ("sft", {"from_run": "a-1"}), "max_steps": (1, {}),
        "validation_rows": (1, {}), "validation_samples": (2, {}), "lora_rank": (4, {}), "lora_alpha": (4, {}),
        "lora_targets": (["q_proj"], {}), "loss": ("grpo", {}), "scale_rewards": ("none", {}), "kl": (0.1, {}),
        "clip": (0.1, {}), "clip_high": (0.1, {}), "num_iterations": (2, {}), "schedule": ("cosine", {}),
        "warmup_steps": (2, {}), "precision": ("bf16", {}), "gradient_accumulation": (8, {}),
        "gradient_checkpointing": (True, {}), "seed": (1, {}), "tune": ("full", {}), "quantize": ("4bit", {}),
        "max_staleness": (0, {}), "oversample": (1.25, {}), "replace_no_signal": (3, {}),
        "straggler_timeout_s": (9.0, {}), "curriculum": (True, {}), "trainer_gpus": (2, {}),
        "sampler_gpus": (2, STARTED), "samplers": (2, STARTED), "max_requests": (8, {}), "test_rows": (4, {}),
        "importance": ("sequence_mask", {}), "importance_cap": (3.0, {}), "ratio_max": (3.0, {}),
        "micro_batch_tokens": (4096, {}), "shard": (True, SERVER), "teacher": ("a/b", {"loss": "distill"}),
        "beta": (0.3, {"method": "dpo", "from_run": "a-1"}),
        "chat_template_kwargs": ({"enable_thinking": False}, {}),
    },
}  # fmt: skip
"""Of each key, a value that is not its default, and what it needs beside it."""
ELSEWHERE = {
    "failures": training_work.__file__,
    "from_run": service.__file__,
    "min_score": service.__file__,
    "pairs_per_row": service.__file__,
    "tokenizer": job_spec.__file__,
    "resources": queue.__file__,
    "priority": submit.__file__,
    "sandbox": server_stages.__file__,
    "sandbox_image": server_stages.__file__,
    "sealed": training_work.__file__,
    "rollout_servers": training_work.__file__,
    "rollout_server_key_env": training_work.__file__,
}
"""Keys of [advanced] that are read by the platform, or when the rollout server starts, and where."""
TABLES = {"training": Training, "sampling": Sampling, "checkpoints": Checkpoints, "advanced": TrainingAdvanced}


GPUS = "01234567"


def outcome(tables: dict[str, dict[str, Any]]) -> str:
    """All that a config comes to in a job."""
    config = TrainingConfig.model_validate(
        {
            "experiment": {"rollout": "r", "entrypoint": "main.py", "dataset": "d", "model_path": "m"},
            "secrets": {"required": ["KEY"]},
            **tables,
        }
    )
    spec = JobSpec(
        run_id="r", run_name="r-1", kind="training", platform_url="http://127.0.0.1:1", repository="r",
        commit_sha="0" * 40, config=config, dataset_path="d.jsonl", rows=list(range(80)), work_dir="w", cache_dir="c",
    )  # fmt: skip
    examples = Examples(Path("e.jsonl"), 80) if config.advanced.method != "grpo" else None
    gpus = GpuSplit.of(GPUS, config.advanced)
    plan = trainer_plan(config, spec, models_dir=Path("m"), gpus=len(gpus.trainer), examples=examples)
    rollouts = rollout_plan(config, spec).model_dump_json()
    try:
        boundary = str(JobSandbox.for_job(spec))
    except JobFailed as refused:  # where there is no sandbox
        boundary = refused.message
    return f"{plan.model_dump_json()} {gpus} {rollouts} {engine_secret(config)} {boundary}"


@pytest.mark.parametrize("table", TABLES)
def test_every_key_has_an_effect(table: str) -> None:
    known = OTHERWISE[table]
    elsewhere = ELSEWHERE if table == "advanced" else {}
    new = TABLES[table].model_fields.keys() - known.keys() - elsewhere.keys()
    assert not new, f"who reads {new}? Add it here with another value, once somebody does"
    for key, (value, needs) in known.items():
        assert TABLES[table].model_fields[key].get_default(call_default_factory=True) != value
        before = outcome({table: dict(needs)} if needs in (SERVER, STARTED) else {})
        assert outcome({table: {**needs, key: value}}) != before, f"[{table}].{key} has no effect"


@pytest.mark.parametrize("key", ELSEWHERE)
def test_what_others_read_is_read_there(key: str) -> None:
    text = Path(ELSEWHERE[key]).read_text()
    assert f"advanced.{key}" in text or f'advanced.get("{key}")' in text


@pytest.mark.parametrize(
    ("advanced", "key"),
    [
        ({"engine": "tinker", "base_url": "http://127.0.0.1:1", "kl": 0.1}, "kl"),
        ({"engine": "tinker", "base_url": "http://127.0.0.1:1", "lora_alpha": 8}, "lora_alpha"),
        ({"engine": "tinker", "base_url": "http://127.0.0.1:1", "method": "sft", "from_run": "a-1"}, "method"),
        ({"engine": "tinker"}, "base_url"),
        ({"tune": "full", "sampler": "vllm", "base_url": "http://127.0.0.1:1"}, "tune"),
        ({"quantize": "4bit", "tune": "full"}, "quantize"),
        ({"quantize": "4bit", "shard": True, "sampler": "vllm"}, "quantize"),
        ({"quantize": "4bit", "engine": "tinker", "base_url": "http://127.0.0.1:1"}, "quantize"),
        ({"failures": {"rate_limit": 0.0}}, "failures"),
        ({"sampler": "vllm", "api_key_env": "KEY"}, "api_key_env"),
        ({"sampler": "vllm", "base_url": "http://127.0.0.1:1", "samplers": 2}, "samplers"),
        ({"sampler_gpus": 2}, "sampler_gpus"),
        ({"sampler": "vllm", "samplers": 2, "sampler_gpus": 3}, "sampler_gpus"),
        ({"sampler": "vllm", "trainer_gpus": 2, "sampler_gpus": 4, "resources": {"gpus": 4}}, "gpus"),
        ({"base_url": "http://127.0.0.1:1"}, "base_url"),
        ({"tokenizer": "tiny"}, "tokenizer"),
        ({"loss": "dr_grpo", "scale_rewards": "batch"}, "scale_rewards"),
        ({"method": "sft"}, "from_run"),
        ({"rollout_server_key_env": "KEY"}, "rollout_server_key_env"),
        ({"rollout_servers": ["https://a", "https://a"]}, "rollout_servers"),
        ({"method": "sft", "from_run": "a-1", "clip": 0.1}, "clip"),
    ],
)
def test_a_key_that_would_have_no_effect_is_refused(advanced: dict[str, Any], key: str) -> None:
    with pytest.raises(ValidationError) as refused:
        outcome({"advanced": advanced})
    assert [error["loc"][-1] for error in refused.value.errors()] == [key]


@pytest.mark.parametrize(
    ("advanced", "importance"),
    [
        ({}, "token_truncate"),
        ({"max_staleness": 0}, "off"),
        ({"max_staleness": 0, "oversample": 1.5}, "token_truncate"),
        ({"max_staleness": 0, "sampler": "vllm"}, "token_truncate"),
        ({"importance": "off"}, "off"),
    ],
)
def test_what_is_not_on_policy_is_corrected_by_default(advanced: dict[str, Any], importance: str) -> None:
    assert f'"importance":"{importance}"' in outcome({"advanced": advanced})


def test_a_run_goes_on_on_a_machine_with_other_gpus() -> None:
    values: dict[str, Any] = {
        "run": "a-1", "model_path": "base", "output_dir": "out", "rows": list(range(12)), "steps": 2,
        "rows_per_step": 4, "samples_per_row": 4, "max_prompt_length": 60, "max_response_length": 60, "lr": 1e-3,
        "save_interval": 2,
    }  # fmt: skip
    begun = TrainerPlan(**values, processes=2, gradient_accumulation=4)
    assert TrainerPlan(**values, processes=8).fingerprint == begun.fingerprint
