"""What a rollout folder says about itself, above all whether the osmosis it asks for is ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from osmosis.jobs.job import JobFailed
from osmosis.jobs.project import read_project


def project(tmp_path: Path, text: str | None, **files: str) -> Path:
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    for name, body in files.items():
        (tmp_path / name.replace("_", ".")).write_text(body)
    return tmp_path


def asks(requirement: str) -> str:
    return f'[project]\nname = "m"\nversion = "1"\ndependencies = ["iniconfig", "{requirement}"]\n'


@pytest.mark.parametrize(
    ("requirement", "generation"),
    [
        ("osmosis-ai", "ours"),
        ("osmosis-ai>=1", "ours"),
        ("osmosis_ai[server,strands]>=0.3.1", "ours"),
        ("osmosis-ai==1.0.0", "ours"),
        ("osmosis-ai~=1.0", "ours"),
        ("osmosis-ai>=0.3.1,<0.4", "theirs"),
        ("osmosis-ai==0.3.8", "theirs"),
        ("osmosis-ai @ https://example.org/osmosis_ai-1.0.0-py3-none-any.whl", "theirs"),
        ("osmosis-ai<0.4; python_version < '3'", "unasked"),
        ("osmosis-ai-tools", "unasked"),
    ],
)
def test_which_osmosis_a_rollout_asks_for(tmp_path: Path, requirement: str, generation: str) -> None:
    assert read_project(project(tmp_path, asks(requirement)), "rollouts/m").generation("1.0.0") == generation


def test_nothing_declared(tmp_path: Path) -> None:
    read = read_project(tmp_path, "rollouts/m")
    assert read.requirements_file is None
    assert read.generation("1.0.0") == "unasked"
    assert not read.installable


def test_requirements_txt_when_pyproject_declares_nothing(tmp_path: Path) -> None:
    folder = project(tmp_path, "[tool.ruff]\nline-length = 100\n")
    (folder / "requirements.txt").write_text("# ours\nosmosis-ai<0.4  # old\n-r more.txt\n")
    read = read_project(folder, "rollouts/m")
    assert read.requirements_file == folder / "requirements.txt"
    assert read.generation("1.0.0") == "theirs"
    assert read.local_sources
    assert read.where == "rollouts/m/requirements.txt"


def test_pyproject_wins_over_requirements_txt(tmp_path: Path) -> None:
    folder = project(tmp_path, asks("osmosis-ai>=1") + '[build-system]\nrequires = ["hatchling"]\n')
    (folder / "requirements.txt").write_text("osmosis-ai<0.4\n")
    (folder / "uv.lock").write_text("version = 1\n")
    read = read_project(folder, "rollouts/m")
    assert read.requirements_file == folder / "pyproject.toml"
    assert read.installable
    assert read.lock == folder / "uv.lock"
    assert read.generation("1.0.0") == "ours"


def test_sources_of_the_checkout_are_noticed(tmp_path: Path) -> None:
    sources = '[tool.uv.sources]\nhelpers = { path = "../../helpers" }\nosmosis-ai = { path = "/home/me/osmosis" }\n'
    read = read_project(project(tmp_path, asks("osmosis-ai>=1") + sources), "rollouts/m")
    assert read.local_sources
    assert read.own_sources


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[project\n", "rollouts/m/pyproject.toml is not valid TOML"),
        ('[project]\ndependencies = ["not a requirement!"]\n', "'not a requirement!' is not a requirement"),
        ('[project]\nrequires-python = "three"\n', "requires-python: 'three' is not a version range"),
    ],
)
def test_a_pyproject_that_cannot_be_understood(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(JobFailed) as caught:
        read_project(project(tmp_path, text), "rollouts/m")
    assert says in caught.value.message
    assert caught.value.failure.fix


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import litellm", "litellm"),
        ("from litellm.utils import x", "litellm"),
        ("def f():\n    from osmosis import Grader, evaluate_rubric", "evaluate_rubric"),
        ("import osmosis\n@osmosis.osmosis_rubric\ndef f(): ...", "osmosis_rubric"),
        ("from osmosis_ai.rollout import RolloutAgentLoop", "osmosis_ai"),
        ("from osmosis.sdk.integrations.openai_agents import OsmosisLitellmModel", "OsmosisLitellmModel"),
        ("from osmosis import Grader  # not evaluate_rubric", None),
        ("import litellm_proxy, osmosis", None),
        ("from .osmosis_ai import x", None),
        ("this is no Python: import litellm", None),
    ],
)
def test_sources_that_need_litellm_say_why(tmp_path: Path, source: str, why: str | None) -> None:
    folder = project(tmp_path, asks("osmosis-ai>=1"))
    (folder / "deep").mkdir()
    (folder / "deep" / "judge.py").write_text(source)
    expected = None if why is None else f"deep/judge.py imports {why}"
    assert read_project(folder, "rollouts/m").judge_reason() == expected


@pytest.mark.parametrize(
    ("requirement", "older"),
    [
        ("osmosis_ai[server]>=0.3.1", True),
        ("osmosis-ai", False),
        ("osmosis-ai>=1,<2", False),
        ("osmosis-ai==1.*", False),
    ],
)
def test_a_requirement_of_before_1_0_brings_litellm_as_it_did(tmp_path: Path, requirement: str, older: bool) -> None:
    reason = read_project(project(tmp_path, asks(requirement)), "rollouts/m").judge_reason()
    assert (reason is not None) is older
    assert not older or requirement in str(reason)
