"""What moves the weights: advantages of scored rollouts, over the model's own tokens, and nothing else."""

import json
import math
import statistics
import subprocess
from pathlib import Path
from typing import Any

import pytest
import uv

from osmosis.jobs.trainer.environment import TrainerEnvironment
from support.trainer_environment import trainer_environ

pytestmark = [pytest.mark.network, pytest.mark.slow]
ORACLE = Path(__file__).parent / "oracle.py"
SAME = 1e-3
"""Adam makes steps of the learning rate (2e-3) out of any gradient; rounding moves the weights by less than this."""
MOVED = 3e-3


@pytest.fixture(scope="module")
def found(checks: Any) -> dict[str, Any]:
    results: dict[str, Any] = checks(
        "updates", "order", "diverged", "packing", "preferences", "chunks", "flops", "continued", "sharded"
    )
    return results


@pytest.fixture
def trl(trainer: TrainerEnvironment, trainer_cache: Path) -> str:
    """TRL and what it needs, beside the trainer's environment, which has none of it."""
    folder = trainer_cache / "trl-oracle" / "site-packages"  # elsewhere dill would pickle their code
    if not folder.exists():
        install = [uv.find_uv_bin(), "pip", "install", "--quiet", "--python", str(trainer.python), "--no-deps"]
        wanted = ["trl==1.16.0", "datasets", "accelerate", "dill", "multiprocess", "pandas", "pyarrow", "xxhash",
                  "python-dateutil", "pytz", "six", "requests", "idna", "certifi", "urllib3",
                  "charset-normalizer"]  # fmt: skip
        done = subprocess.run([*install, "--target", str(folder), *wanted], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"needs TRL, which cannot be installed here: {done.stderr[-300:]}")
    return str(folder)


@pytest.mark.soak
def test_losses_and_gradients_are_those_of_trl(
    trl: str, trainer: TrainerEnvironment, tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", trl)
    command = [str(trainer.python), str(ORACLE), str(tiny_base), str(tmp_path)]
    done = subprocess.run(command, env=trainer_environ(trainer), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert {tuple(values[:2]) for values in found["forks"].values()} == {(1, 1.0)}, "no template cuts a conversation"
    assert found["forks"]["qwen3, user"][2] > 0, "Qwen3's own drops reasoning, which is repaired"
    apart = found["losses"]
    assert {"grpo", "dapo", "dr_grpo", "gspo", "cispo", "rejection"} < apart.keys()
    assert {name: values for name, values in apart.items() if max(values) > 1e-4} == {}


def test_preferences_are_learned_with_the_loss_of_dpo(found: dict[str, Any]) -> None:
    learned = found["preferences"]
    assert max(learned["loss"], learned["gradient"]) < 1e-4, "beside pairs that go through the model alone"
    curves = learned["curves"]
    assert curves["loss"][0] == pytest.approx(math.log(2), abs=1e-5), "an adapter that is still the base model"
    assert statistics.fmean(curves["reward_margin"][-3:]) > 0.5
    assert statistics.fmean(curves["preference_accuracy"][-3:]) > 0.9


def test_a_long_rollout_costs_its_own_tokens_and_pads_no_other(found: dict[str, Any]) -> None:
    packed = found["packing"]
    assert packed["padded_share"] < 1.5
    assert packed["same_logits"] < 1e-4, "packed in rows, a tree of parts, and alone"


def test_logits_of_a_chunk_after_another_are_those_of_all(found: dict[str, Any]) -> None:
    plain, capped = found["chunks"]["plain"], found["chunks"]["capped"]
    assert (plain["is_chunked"], capped["is_chunked"]) == (True, False)
    assert (plain["keeps_logits"], capped["keeps_logits"]) == (False, True)
    assert max(max(values["apart"], values["from_logits"]) for values in (plain, capped)) < 1e-5


def test_flops_are_those_of_the_products_that_a_gradient_needs(found: dict[str, Any]) -> None:
    flops = found["flops"]
    assert flops["counted"] == flops["measured"]
    assert flops["peaks"]
    assert flops["on_cpu"] is None


def test_weights_move_by_what_the_model_said_and_never_by_what_the_environment_did(found: dict[str, Any]) -> None:
    assert found["updates"]["moved"] > MOVED
    assert found["updates"]["masks_alone_move"] == 0


def test_a_run_goes_on_from_the_adapter_of_another(found: dict[str, Any]) -> None:
    assert found["continued"]["still"] == 0
    assert found["continued"]["moved"] > SAME
    assert found["continued"]["same_settings"]


def test_processes_that_share_the_base_model_train_as_one_does(found: dict[str, Any]) -> None:
    assert found["sharded"]["apart"] < SAME
    assert found["sharded"]["shares"] == pytest.approx([0.5, 0.5], abs=0.02)


def test_equal_rewards_teach_nothing(found: dict[str, Any]) -> None:
    assert found["updates"]["equal_rewards_move"] < SAME


def test_a_failed_rollout_is_outside_the_statistics_of_its_group(found: dict[str, Any]) -> None:
    assert found["updates"]["failed_tokens_matter"] < SAME
    assert found["updates"]["failures_matter"] > MOVED
    assert found["updates"]["a_failure_is_no_zero"] > MOVED


def test_pieces_of_a_batch_change_memory_and_not_the_result(found: dict[str, Any]) -> None:
    assert found["updates"]["accumulation"] < SAME


def test_losses_differ_and_iterations_report_once_per_step(found: dict[str, Any]) -> None:
    assert found["updates"]["grpo"] > MOVED
    assert found["updates"]["dr_grpo"] > MOVED
    iterations = found["updates"]["iterations"]
    assert (iterations["metrics"], iterations["kl"]) == (2, True)
    assert iterations["apart"] > MOVED


def test_the_ratio_is_to_what_a_server_sampled_with(found: dict[str, Any]) -> None:
    assert found["updates"]["own_samples_are_on_policy"] == 0
    assert found["updates"]["a_servers_logprobs_matter"] > SAME, "0 when they are not read; how much depends on the CPU"


def test_an_adapter_in_half_precision_learns_by_steps_that_are_smaller_than_it_can_tell_apart(
    found: dict[str, Any],
) -> None:
    half = found["updates"]["half_precision"]
    assert half["types"] == ["torch.bfloat16"]
    assert half["moved"] > 1e-7
    assert half["resumed"] == 0


def test_a_forked_rollout_is_trained_on_as_if_it_were_one_sequence(found: dict[str, Any]) -> None:
    forks = found["updates"]["forks"]
    assert forks["trained_share"] == 1.0
    assert max(forks["dapo"], forks["grpo"]) < 1e-4


def test_a_step_reports_under_the_names_of_the_contract(found: dict[str, Any]) -> None:
    names = set(found["updates"]["metrics"])
    assert names >= {
        "rollout/raw_reward", "train/entropy_loss", "train/loss", "train/lr", "train/grad_norm", "train/clip_ratio",
        "train/kl", "train/trained_tokens", "train/mismatch_mean", "train/mismatch_p99", "train/mismatch_max",
        "train/importance_ratio", "train/outside_clip", "perf/update_s",
    }  # fmt: skip


def test_a_gradient_that_is_no_number_ends_the_run_before_it_is_applied(found: dict[str, Any]) -> None:
    ended = found["diverged"]
    assert (ended["kind"], ended["step"]) == ("diverged", 0)
    assert ended["message"] == "the gradient of step 1 is not finite: training diverged"
    assert "lower lr" in ended["hint"]


def test_steps_have_the_rows_that_the_seed_says(found: dict[str, Any]) -> None:
    assert found["order"]["asked"] == found["order"]["expected"]
