"""Every weight of the tiny model is trained, and what a checkpoint is for is done with the result."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from osmosis.base.jsonable import JsonObject
from support.training_platform import CONFIG, EVAL_CONFIG, QUIET, TrainingPlatform, training_platform

pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.fixture(scope="module")
def place(tiny_base: Path, trainer_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingPlatform]:
    home, command = tmp_path_factory.mktemp("full"), f"{sys.executable} -m osmosis.jobs"
    with training_platform(home, trainer_cache, job_command=command) as made:
        made.ok("model", "upload", str(tiny_base), "--name", "tiny")
        made.set(
            training__rollout_batch_size=4, training__n_samples_per_prompt=4, advanced__max_steps=1,
            training__lr=1e-3, advanced__validation_rows=2, advanced__tune="full", checkpoints__checkpoint_save_freq=1,
        )  # fmt: skip
        yield made


def ask(model: str, url: str, key: str) -> str:
    """What a served model says."""
    body = {"model": model, "messages": [{"role": "user", "content": "17+25"}], "temperature": 0, "max_tokens": 40}
    headers = {"Authorization": f"Bearer {key}"}
    answer = httpx.post(f"{url}/chat/completions", json=body, headers=headers, timeout=60)
    choice: JsonObject = answer.json()["choices"][0]
    return str(choice["message"])


def ask_here(place: TrainingPlatform, name: str) -> str:
    """What it says when `osmosis model serve` serves it on this machine."""
    home = place.process.data_dir  # where its platform has made the trainer's environment
    environ = {**os.environ, **QUIET, **place.process.login_environ, "OSMOSIS_DATA_DIR": str(home)}
    command = [sys.executable, "-m", "osmosis", "--json", "--workspace", "demo", "model", "serve", name]
    with subprocess.Popen(command, cwd=home, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        served = json.loads(process.stdout.readline())
        try:
            return ask(served["model"], served["base_url"], served["api_key"])
        finally:
            process.send_signal(signal.SIGINT)


async def test_whatever_takes_a_checkpoint_takes_one_of_every_weight(
    place: TrainingPlatform, tiny_base: Path, tmp_path: Path
) -> None:
    name = place.submit()
    assert await place.until_over(name) == "finished", place.log(name)
    place.ok("model", "deploy", name, "--wait")
    platform, key = f"{place.process.url}/v1", place.process.token
    trained = ask(f"{name}-step-1", platform, key)
    place.ok("model", "undeploy", name)
    assert ask_here(place, name) == trained

    folder = tmp_path / "fetched"
    fetched = place.ok("model", "download", name, "-o", str(folder), "--yes")["resource"]
    assert fetched["type"] == "full"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
    assert not (folder / "optimizer.safetensors").exists()
    weights = "model.safetensors"
    assert (folder / weights).read_bytes() != (tiny_base / weights).read_bytes()
    assert place.ok("model", "upload", str(folder), "--name", "again")["resource"]["status"] == "ready"

    place.ok("model", "merge", name, "--name", "merged")
    place.ok("model", "deploy", "merged", "--wait")
    assert ask("merged", platform, key) == trained
    place.ok("model", "undeploy", "merged")

    place.set(EVAL_CONFIG, experiment__model_path=f"osmosis/{name}", evaluation__limit=2)
    evaluated = place.submit("eval", EVAL_CONFIG)
    assert await place.until_over(evaluated, "eval") == "finished", place.log(evaluated, "eval")

    place.set(experiment__model_path=name)
    second = place.submit()
    assert await place.until_over(second) == "finished", place.log(second)
    assert f"{name}-step-1" in json.dumps(place.row(second))
    place.set(advanced__tune="lora")
    refused = place.run("train", "submit", CONFIG, "--yes", "--wait-sync").error
    assert "every weight of" in refused["message"]
    assert f"osmosis model merge {name}-step-1" in json.dumps(refused)
