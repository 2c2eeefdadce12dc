"""Real environments made by uv: ours pinned, theirs from the index, cached, one at a time, clear when impossible."""

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import uv

from osmosis.base.installation import MARKER, Wheel, build_wheel
from osmosis.jobs.context import JobFailed, JobLog
from osmosis.jobs.prepare.environment import Builder, Environment
from osmosis.jobs.prepare.project import read_project
from osmosis.records.run.job import LogLine
from osmosis.records.run.rollout import Category, Phase

pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def wheel(cache: Path) -> Wheel:
    return build_wheel(cache)


@pytest.fixture
def lines() -> list[LogLine]:
    return []


@pytest.fixture
def builder(cache: Path, wheel: Wheel, lines: list[LogLine]) -> Builder:
    return Builder(uv.find_uv_bin(), cache, wheel, os.environ, JobLog(None, lines.append))


def rollout(tmp_path: Path, pyproject: str, **files: str) -> Path:
    folder = tmp_path / "rollouts" / "multiply"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(pyproject)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def declares(*dependencies: str, python: str = ">=3.10", more: str = "") -> str:
    listed = ", ".join(f'"{d}"' for d in dependencies)
    head = f'[project]\nname = "multiply"\nversion = "0.1"\nrequires-python = "{python}"\n'
    return f"{head}dependencies = [{listed}]\n{more}"


def lock_lowest(folder: Path) -> None:
    """uv.lock with the oldest versions allowed, which nobody would choose today."""
    environ = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    lock = [uv.find_uv_bin(), "lock", "--quiet", "--resolution", "lowest", "--python", sys.executable]
    subprocess.run(lock, cwd=folder, check=True, env=environ)


async def make(builder: Builder, folder: Path, tmp_path: Path) -> Environment:
    project = read_project(folder, "rollouts/multiply")
    return await builder.environment(project, commit_sha="a" * 40, install_to=tmp_path / "installed")


def python(environment: Environment, code: str, **environ: str) -> str:
    run = subprocess.run(
        [str(environment.python), "-c", code], env=environ, capture_output=True, text=True, check=True, cwd="/"
    )
    return run.stdout.strip()


async def test_ours_is_pinned_beside_a_dependency_and_made_once(
    builder: Builder, wheel: Wheel, lines: list[LogLine], tmp_path: Path
) -> None:
    folder = rollout(tmp_path, declares("osmosis-ai[server]>=1", "iniconfig>=2"))
    made = await make(builder, folder, tmp_path)
    code = "import iniconfig, importlib.metadata as m; print(m.version('osmosis-ai'))"
    assert python(made, code) == wheel.version == made.osmosis_version
    assert "iniconfig" in made.packages
    marked = (made.folder.parent / MARKER).stat().st_ino
    again = await make(builder, folder, tmp_path)
    assert (again.folder, (again.folder.parent / MARKER).stat().st_ino) == (made.folder, marked)
    assert "from the cache" in lines[-1].message
    assert [p.name for p in made.folder.parent.iterdir() if p.name.startswith(".making")] == []


async def test_two_jobs_at_once_make_it_once(cache: Path, wheel: Wheel, tmp_path: Path) -> None:
    folder = rollout(tmp_path, declares("iniconfig>=2.0.0"))
    logs: tuple[list[LogLine], list[LogLine]] = ([], [])
    builders = [Builder(uv.find_uv_bin(), cache, wheel, os.environ, JobLog(None, log.append)) for log in logs]
    first, second = await asyncio.gather(*(make(b, folder, tmp_path / str(i)) for i, b in enumerate(builders)))
    assert first.folder == second.folder
    said = [line.message for log in logs for line in log]
    assert sum("creating the environment" in message for message in said) == 1
    assert sum("from the cache" in message for message in said) == 1


async def test_the_other_generation_comes_from_the_index(builder: Builder, tmp_path: Path) -> None:
    made = await make(builder, rollout(tmp_path, declares("osmosis-ai>=0.3.1,<0.4", python=">=3.12")), tmp_path)
    assert made.osmosis_version.startswith("0.3.")
    assert tuple(int(part) for part in made.python_version.split(".")[:2]) >= (3, 12)


async def test_a_python_that_is_nowhere(builder: Builder, tmp_path: Path) -> None:
    with pytest.raises(JobFailed) as caught:
        await make(builder, rollout(tmp_path, declares("iniconfig", python=">=3.99")), tmp_path)
    assert "requires-python is '>=3.99'" in caught.value.message


async def test_a_dependency_that_does_not_exist(builder: Builder, cache: Path, tmp_path: Path) -> None:
    name = "osmosis-no-such-distribution>=3"
    with pytest.raises(JobFailed) as caught:
        await make(builder, rollout(tmp_path, declares("iniconfig", name)), tmp_path)
    failure = caught.value.failure
    assert (failure.phase, failure.category) == (Phase.SETUP, Category.AGENT_ERROR)
    assert failure.message.startswith(f"rollouts/multiply/pyproject.toml: a dependency cannot be installed ({name}): ")
    assert failure.traceback
    assert list((cache / "environments").glob("*/.making*")) == []


async def test_a_job_killed_while_building_stands_in_nobodys_way(builder: Builder, tmp_path: Path) -> None:
    cache = tmp_path / "cache"  # its uv outlives it, and goes on writing there
    folder = rollout(tmp_path, declares("iniconfig>=2.0.1", "osmosis-ai[openai-agents]"))
    code = f"""
import asyncio, os, uv
from pathlib import Path
from osmosis.jobs.prepare.environment import Builder
from osmosis.jobs.context import JobLog
from osmosis.jobs.prepare.project import read_project
from osmosis.base.installation import build_wheel
cache = Path({str(cache)!r})
log = JobLog(None, lambda line: print(line.message, flush=True))
builder = Builder(uv.find_uv_bin(), cache, build_wheel(cache), os.environ, log)
project = read_project(Path({str(folder)!r}), "rollouts/multiply")
asyncio.run(builder.environment(project, commit_sha="a" * 40, install_to=Path({str(tmp_path / "x")!r})))
"""
    job = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert job.stdout is not None
    async for line in job.stdout:
        if b"creating the environment" in line:
            break
    job.send_signal(signal.SIGKILL)
    await job.wait()
    made = await make(replace(builder, cache_dir=cache), folder, tmp_path)
    assert made.python.exists()


async def test_uv_lock_is_honoured_and_additions_are_installed(builder: Builder, wheel: Wheel, tmp_path: Path) -> None:
    folder = rollout(tmp_path, declares("iniconfig>=1.1,<2"))
    lock_lowest(folder)
    rollout(tmp_path, declares("iniconfig>=1.1,<2", "typing-extensions"))
    made = await make(builder, folder, tmp_path)
    assert made.packages["iniconfig"] == "1.1.0"
    assert "typing-extensions" in made.packages
    assert made.osmosis_version == wheel.version


async def test_an_installable_project_is_installed_per_run(builder: Builder, tmp_path: Path) -> None:
    build = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
    only = '[tool.hatch.build.targets.wheel]\nonly-include = ["helper.py"]\n'
    folder = rollout(tmp_path, declares("iniconfig", more=build + only), helper="ANSWER = 42\n")
    made = await make(builder, folder, tmp_path)
    assert made.project == tmp_path / "installed"
    assert python(made, "import helper; print(helper.ANSWER)", PYTHONPATH=str(made.project)) == "42"
    (folder / "helper.py").write_text("ANSWER = 43\n")
    again = await make(builder, folder, tmp_path)
    assert again.folder == made.folder
    assert python(again, "import helper; print(helper.ANSWER)", PYTHONPATH=str(again.project)) == "43"


async def test_secrets_and_env_do_not_reach_a_build_backend(cache: Path, wheel: Wheel, tmp_path: Path) -> None:
    seen = tmp_path / "seen.txt"
    setup = (
        f"import os\nopen({str(seen)!r}, 'w').write(repr(sorted(os.environ)))\nfrom setuptools import setup\nsetup()\n"
    )
    build = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
    none = "[tool.setuptools]\npy-modules = []\n"
    folder = rollout(tmp_path, declares("iniconfig", more=build + none), setup=setup)
    written = sorted(folder.rglob("*"))
    environ = {**os.environ, "SEARCH_KEY": "s3cret-value", "MODE": "fast"}
    builder = Builder(uv.find_uv_bin(), cache, wheel, environ, JobLog())
    await make(builder, folder, tmp_path)
    assert sorted(folder.rglob("*")) == written, "the build left files in the workspace"
    assert "PATH" in seen.read_text()
    assert not [name for name in ("'SEARCH_KEY'", "'MODE'") if name in seen.read_text()]


async def test_too_slow_is_a_timeout_and_leaves_nothing(
    cache: Path, wheel: Wheel, lines: list[LogLine], tmp_path: Path
) -> None:
    folder = rollout(tmp_path, declares("iniconfig<2"))
    builder = Builder(uv.find_uv_bin(), cache, wheel, os.environ, JobLog(None, lines.append), timeout_s=0.001)
    with pytest.raises(JobFailed) as caught:
        await make(builder, folder, tmp_path)
    assert caught.value.failure.category is Category.TIMEOUT
    assert [p.name for p in (cache / "environments").iterdir() if p.name.startswith(".making")] == []


async def test_without_a_network_the_cache_is_enough(
    cache: Path, wheel: Wheel, lines: list[LogLine], tmp_path: Path
) -> None:
    # A dead proxy stands for a machine without a network.
    environ = {**os.environ, "https_proxy": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}
    environ["UV_HTTP_RETRIES"] = "0"
    environ["UV_INDEX_URL"] = "https://packages.example.invalid/simple"
    builder = Builder(uv.find_uv_bin(), cache, wheel, environ, JobLog(None, lines.append))
    with pytest.raises(JobFailed) as caught:
        await make(builder, rollout(tmp_path, declares("iniconfig")), tmp_path)
    assert caught.value.failure.category is Category.CONNECTION
    assert "cannot be reached" in caught.value.message
    del environ["UV_INDEX_URL"]
    made = await make(builder, rollout(tmp_path, declares("iniconfig!=2.0.3")), tmp_path)
    assert "iniconfig" in made.packages
    assert any("does not answer" in line.message for line in lines)


PUBLIC = """
import importlib, pkgutil, sys
import osmosis, osmosis.jobs.server.serve_entrypoint, osmosis.sdk, osmosis.serve.server
for package in (osmosis.sdk, osmosis.serve.server):
    for one in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not one.name.startswith(tuple(f"osmosis.sdk.{name}." for name in ("integrations", "harbor", "foreign"))):
            importlib.import_module(one.name)
lacking = []
for name in osmosis.__all__:
    try:
        getattr(osmosis, name)
    except ModuleNotFoundError as error:
        lacking.append(f"{name}: {error}")
print(*lacking, sep="\\n")
"""


async def test_an_environment_has_what_the_sdk_and_the_server_import_and_little_more(
    tmp_path: Path, builder: Builder
) -> None:
    project = read_project(rollout(tmp_path, declares("osmosis-ai>=1")), "rollouts/multiply")
    made = await builder.environment(project, commit_sha="", install_to=tmp_path / "installed")
    assert len(made.packages) <= 40
    assert not {"litellm", "pyarrow", "sqlalchemy", "copier"} & made.packages.keys()
    said = await asyncio.to_thread(subprocess.run, [made.python, "-I", "-c", PUBLIC], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    for line in filter(None, said.stdout.splitlines()):
        assert line.startswith(("decide:", "evaluate", "verify:")), line
        assert "which is not installed here: python -m pip install" in line


async def test_a_rollout_that_judges_gets_litellm_and_the_log_says_why(
    tmp_path: Path, builder: Builder, lines: list[LogLine]
) -> None:
    folder = rollout(tmp_path, declares("osmosis-ai>=1"), main="from osmosis import evaluate_rubric\n")
    project = read_project(folder, "rollouts/multiply")
    made = await builder.environment(project, commit_sha="", install_to=tmp_path / "installed")
    assert "litellm" in made.packages
    assert "also installing LiteLLM (osmosis-ai[rubric]): rollouts/multiply: main.py imports evaluate_rubric" in [
        line.message for line in lines
    ]
