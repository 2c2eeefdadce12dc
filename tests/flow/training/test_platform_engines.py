"""Engines and samplers elsewhere, through the platform: config to checkpoints, against servers of ours."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fake_tinker import MODEL, FakeTinker
from support.fake_vllm import FakeVllm, write_program
from support.training_platform import AGENT, CONFIG, TrainingPlatform, kill, training_platform
from support.waiting import until

pytestmark = [pytest.mark.network, pytest.mark.slow]
END, DIGIT = 2, 37
"""The tiny tokenizer's end of a turn, and its 0."""
OF_LOCAL = ("gradient_checkpointing", "lora_alpha")
KEY = "tml-a-key-of-the-test"


@pytest.fixture(scope="module")
def place(tiny_base: Path, trainer_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingPlatform]:
    """Any answer of two digits will do for the agent, odd ones are rewarded; it fails where it sees an engine's key."""
    home, command = tmp_path_factory.mktemp("engines"), f"{sys.executable} -m osmosis.jobs"
    vllm = write_program(home / "vllm", [DIGIT + 1, DIGIT, END], [DIGIT + 1, DIGIT + 1, END])
    with training_platform(home, trainer_cache, job_command=command, more={"OSMOSIS_VLLM": str(vllm)}) as made:
        made.ok("model", "upload", str(tiny_base), "--name", "tiny")
        looks = 'import os\nassert not {"TINKER_API_KEY", "SAMPLER_KEY"} & os.environ.keys()\n'
        (made.folder / "rollouts" / "add" / "main.py").write_text(looks + AGENT)
        made.set(training__rollout_batch_size=4, training__n_samples_per_prompt=4, advanced__max_steps=3)
        made.set(advanced__validation_rows=2, advanced__max_staleness=0, checkpoints__checkpoint_save_freq=2)
        yield made


def configured(place: TrainingPlatform, name: str, advanced: str, more: str = "", model: str = "tiny") -> str:
    """A config with further keys of [advanced], and further tables."""
    config = f"configs/training/{name}.toml"
    kept = [line for line in (place.folder / CONFIG).read_text().splitlines() if not line.startswith(OF_LOCAL)]
    text = "\n".join(kept).replace("[advanced]", f"[advanced]\n{advanced}").replace('"tiny"', f'"{model}"', 1)
    (place.folder / config).write_text(f"{text}\n{more}\n")
    place.push()
    return config


async def test_a_run_on_a_tinker_server_from_config_to_checkpoints(place: TrainingPlatform) -> None:
    answers = [[DIGIT + 1, DIGIT + 1, END], [DIGIT + 1, DIGIT, END]]
    async with FakeTinker(answers) as server:
        advanced = f'engine = "tinker"\nbase_url = "{server.url}"\napi_key_env = "TINKER_API_KEY"\ntokenizer = "tiny"'
        config = configured(place, "tinker", advanced, '[secrets]\nrequired = ["TINKER_API_KEY"]', MODEL)
        (place.folder.parent / "key.env").write_text(f"TINKER_API_KEY={KEY}\n")
        name = place.submit("train", config, "--secrets-file", str(place.folder.parent / "key.env"))
        assert await place.until_over(name) == "finished", place.log(name)
        assert server.keys == {KEY}
        assert server.requests["optim_step"] >= 1
        assert server.chances[0] > 0.5
    assert list(place.curve(name, "rollout/raw_reward")) == [1, 2, 3]
    assert list(place.curve(name, "train/lr")) == [1, 2, 3]
    assert list(place.curve(name, "eval/validation/reward")) == [0, 3]
    saved = place.ok("train", "checkpoints", name)["items"]
    assert [checkpoint["checkpoint_step"] for checkpoint in saved] == [2, 3]
    folder = place.process.data_dir / "models" / "runs" / str(place.row(name)["id"]) / "step-000003"
    assert json.loads((folder / "tinker.json").read_text())["weights"].startswith("tinker://")
    refused = place.run("model", "download", f"{name}-step-3")
    assert "is on the Tinker server that trained it: tinker://" in refused.error["message"]
    for path in place.work_dir(name).rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


def test_a_tokenizer_that_is_nowhere_is_refused_before_the_run(place: TrainingPlatform) -> None:
    advanced = 'engine = "tinker"\nbase_url = "http://127.0.0.1:9"\ntokenizer = "nowhere"'
    refused = place.run("train", "submit", configured(place, "lost", advanced, model=MODEL), "--yes", "--wait-sync")
    assert refused.error["details"]["issues"][0]["key"] == "advanced.tokenizer"


async def test_a_run_that_a_vllm_server_samples_for(place: TrainingPlatform) -> None:
    async with FakeVllm([DIGIT + 1, DIGIT, END]) as server:
        advanced = f'sampler = "vllm"\nbase_url = "{server.url}"\napi_key_env = "SAMPLER_KEY"'
        config = configured(place, "sampled", advanced, '[secrets]\nrequired = ["SAMPLER_KEY"]')
        place.set(config, advanced__max_steps=2)
        (place.folder.parent / "key.env").write_text(f"SAMPLER_KEY={KEY}\n")
        name = place.submit("train", config, "--secrets-file", str(place.folder.parent / "key.env"))
        assert await place.until_over(name) == "finished", place.log(name)
        assert server.keys == {f"Bearer {KEY}"}
        assert [adapter.rpartition("-")[2] for adapter in server.loaded] == ["v0", "v1", "v2"]
        assert all(adapter.startswith(f"{name}-") for adapter in server.loaded)
        assert {body["model"] for body in server.asked} == set(server.loaded)
    assert list(place.curve(name, "rollout/raw_reward")) == [1, 2]
    assert [checkpoint["checkpoint_step"] for checkpoint in place.ok("train", "checkpoints", name)["items"]] == [2]


async def test_a_run_that_starts_its_own_vllm_servers_and_loses_one(place: TrainingPlatform) -> None:
    config = configured(place, "started", 'sampler = "vllm"\nsamplers = 2')
    name = place.submit("train", config)
    await until(lambda: bool(place.curve(name, "rollout/raw_reward")), within=300, what="a step")
    kill(next(process for process in place.processes(name) if process.cmdline()[2:3] == ["serve"]))
    assert await place.until_over(name) == "finished", place.log(name)
    assert list(place.curve(name, "rollout/raw_reward")) == [1, 2, 3]
    assert not any(place.curve(name, "rollout/failed_ratio").values()), "what was cut off was sampled again"
    log = place.log(name)
    assert log.count("is ready after") == 3
    assert "ended with signal 9: starting it again" in log
