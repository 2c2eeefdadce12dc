"""What a rollout folder says about itself, above all whether the osmosis it asks for is ours."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from osmosis.base.installation import Wheel
from osmosis.jobs.context import JobFailed
from osmosis.jobs.prepare.entrypoints import Entrypoint, read_rollout
from osmosis.jobs.prepare.environment import Interpreter, environment_key
from osmosis.jobs.prepare.project import read_project


def project(tmp_path: Path, text: str | None, **files: str) -> Path:
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    for name, body in files.items():
        (tmp_path / name.replace("_", ".")).write_text(body)
    return tmp_path


def requiring(requirement: str) -> str:
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
    assert read_project(project(tmp_path, requiring(requirement)), "rollouts/m").generation("1.0.0") == generation


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
    folder = project(tmp_path, requiring("osmosis-ai>=1") + '[build-system]\nrequires = ["hatchling"]\n')
    (folder / "requirements.txt").write_text("osmosis-ai<0.4\n")
    (folder / "uv.lock").write_text("version = 1\n")
    read = read_project(folder, "rollouts/m")
    assert read.requirements_file == folder / "pyproject.toml"
    assert read.installable
    assert read.lock == folder / "uv.lock"
    assert read.generation("1.0.0") == "ours"


LOCKED = """
version = 1
[[package]]
name = "m"
version = "1"
source = { virtual = "." }
[[package]]
name = "iniconfig"
version = "2.0.0"
source = { %s }
"""
PLAIN = 'registry = "https://pypi.org/simple"'


@pytest.mark.parametrize(
    ("files", "from_index"),
    [
        ({"pyproject.toml": requiring("osmosis-ai>=1")}, True),
        ({"pyproject.toml": requiring("osmosis-ai>=1"), "uv.lock": LOCKED % PLAIN}, True),
        ({"pyproject.toml": requiring("osmosis-ai>=1") + "[tool.uv]\npackage = false\n"}, True),
        ({"requirements.txt": "# a\niniconfig==2.0.0 \\\n  --hash=sha256:00\nosmosis-ai>=1\n"}, True),
        ({"pyproject.toml": requiring("osmosis-ai>=1"), "uv.lock": LOCKED % 'registry = "../wheels"'}, False),
        ({"pyproject.toml": requiring("osmosis-ai>=1"), "uv.lock": LOCKED % 'path = "../w.whl"'}, False),
        ({"pyproject.toml": requiring("osmosis-ai>=1") + '[tool.uv]\nfind-links = ["wheels"]\n'}, False),
        ({"pyproject.toml": requiring("osmosis-ai>=1") + '[tool.uv.sources]\nx = { path = "../x" }\n'}, False),
        ({"pyproject.toml": requiring("osmosis-ai>=1") + '[tool.uv.sources]\nx = { git = "https://x" }\n'}, False),
        ({"pyproject.toml": requiring("x @ file://${PROJECT_ROOT}/x.whl")}, False),
        ({"pyproject.toml": requiring("x"), "uv.toml": 'find-links = ["wheels"]\n'}, False),
        ({"requirements.txt": "--find-links wheels\nx\n"}, False),
        ({"requirements.txt": "x\n./local\n"}, False),
        ({"requirements.txt": "x @ file://${PROJECT_ROOT}/x.whl\n"}, False),
        ({"requirements.txt": "x\n", "../../pyproject.toml": '[tool.uv]\nfind-links = ["wheels"]\n'}, False),
    ],
)
def test_commits_share_an_environment_only_if_all_of_it_comes_from_an_index(
    tmp_path: Path, files: dict[str, str], from_index: bool
) -> None:
    folder = tmp_path / "rollouts" / "m"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    read = read_project(folder, "rollouts/m")
    assert read.local_sources is not from_index
    wheel, python = Wheel(Path("w.whl"), "1.0.0+abc", "abc"), Interpreter(Path("/usr/bin/python3"), "3.11.7")
    first, second = (environment_key(read, wheel, python, commit * 40) for commit in "ab")
    assert (first == second) is from_index


def test_osmosis_from_a_source_of_the_rollouts_is_noticed(tmp_path: Path) -> None:
    sources = '[tool.uv.sources]\nosmosis-ai = { path = "/home/me/osmosis" }\n'
    assert read_project(project(tmp_path, requiring("osmosis-ai>=1") + sources), "rollouts/m").own_sources


@pytest.mark.parametrize("name", ["pyproject.toml", "requirements.txt", "uv.lock", "main.py"])
def test_no_link_of_a_checkout_is_followed(tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").write_text('[project]\nname = "SECRET-VALUE"\ndependencies = ["SECRET VALUE"]\n')
    folder = tmp_path / "rollouts" / "m"
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(requiring("osmosis-ai>=1"))
    (folder / "main.py").write_text("pass")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "outside")
    with pytest.raises(JobFailed, match=f"rollouts/m/{name} is not a plain file") as refusal:
        read_rollout(tmp_path, "m", "main.py")
    assert "SECRET" not in str(refusal.value.failure)


def test_what_takes_too_much_is_read_by_a_process_of_no_importance(tmp_path: Path) -> None:
    folder = tmp_path / "rollouts" / "m"
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(requiring("osmosis-ai<0.4"))
    (folder / "main.py").write_text("app = FastAPI()\n")
    (folder / "device.py").symlink_to("/dev/zero")
    (folder / "large.py").write_text("x = [" + "1," * 3_000_000 + "]\n")
    (folder / "deep.py").write_text("-" * 200_000 + "1")
    (folder / "judge.py").write_text("import litellm\n")
    read = read_rollout(tmp_path, "m", "main.py")
    assert read.entrypoint == Entrypoint("module", "app")
    assert read.project == read_project(folder, "rollouts/m")
    assert read.project.judges == "judge.py imports litellm"
    (folder / "pyproject.toml").write_text("x = " + "[" * 100_000)
    with pytest.raises(JobFailed, match="rollouts/m"):
        read_rollout(tmp_path, "m", "main.py")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2_000_000


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
    folder = project(tmp_path, requiring("osmosis-ai>=1"))
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
    reason = read_project(project(tmp_path, requiring(requirement)), "rollouts/m").judge_reason()
    assert (reason is not None) is older
    assert not older or requirement in str(reason)
