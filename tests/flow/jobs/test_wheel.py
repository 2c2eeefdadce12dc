"""The wheel of the running installation: a valid wheel, the right content, one per content, safe to race."""

import base64
import csv
import email
import hashlib
import io
import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import filelock
import pytest
import uv
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

import osmosis
from osmosis.base.installation import PLATFORM, ROLLOUT, Wheel, build_wheel, split_requirements


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    return build_wheel(tmp_path_factory.mktemp("cache"))


def test_name_and_version_are_valid_and_local(wheel: Wheel) -> None:
    name, version, _, tags = parse_wheel_filename(wheel.path.name)
    assert (name, [str(tag) for tag in tags]) == ("osmosis-ai", ["py3-none-any"])
    assert str(version) == wheel.version
    assert Version(wheel.version).public == wheel.base_version == metadata.version("osmosis-ai").split("+")[0]
    assert Version(wheel.version).local == wheel.content_hash


def test_record_names_every_file_with_its_hash_and_size(wheel: Wheel) -> None:
    with zipfile.ZipFile(wheel.path) as archive:
        record_name = next(name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
        rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(archive.read(record_name).decode()))}
        assert sorted(rows) == sorted(archive.namelist())
        for name in archive.namelist():
            if name == record_name:
                assert rows[name] == ["", ""]
                continue
            body = archive.read(name)
            digest = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()
            assert rows[name] == [f"sha256={digest}", str(len(body))]


def test_content_is_the_running_code_with_templates_and_without_compiled_files(wheel: Wheel) -> None:
    with zipfile.ZipFile(wheel.path) as archive:
        names = archive.namelist()
        package = Path(osmosis.__file__).parent
        assert archive.read("osmosis/errors.py") == (package / "errors.py").read_bytes()
    assert "osmosis_ai/__init__.py" in names
    assert any(name.startswith("osmosis/_templates/") for name in names)
    assert not [name for name in names if name.endswith(".pyc") or "__pycache__" in name]


def test_metadata_keeps_entry_points_and_asks_for_what_a_rollout_imports(wheel: Wheel) -> None:
    with zipfile.ZipFile(wheel.path) as archive:
        info = f"osmosis_ai-{wheel.version}.dist-info"
        text = archive.read(f"{info}/METADATA")
        assert f"\nVersion: {wheel.version}\n" in text.decode()
        assert "osmosis = osmosis.cli:main" in archive.read(f"{info}/entry_points.txt").decode()
    assert split_requirements(text) == text, "what is installed from the wheel makes the same wheel"
    always, extras = requirements(text)
    everything, _ = requirements((metadata.distribution("osmosis-ai").read_text("METADATA") or "").encode())
    assert always == ROLLOUT
    assert extras["full"] - {"fastmcp"} == extras["platform"] == everything - ROLLOUT
    assert extras["eval"] == everything - ROLLOUT - PLATFORM
    assert extras["eval"] > extras["rubric"] | extras["parquet"] == {"litellm", "pyarrow"}
    assert extras["server"] == set()
    assert "fastmcp" in extras["mcp"] & extras["full"]


def requirements(text: bytes) -> tuple[set[str], dict[str, set[str]]]:
    """The names that are always installed, and those of each extra."""
    head = email.message_from_bytes(text)
    always: set[str] = set()
    extras: dict[str, set[str]] = {name: set() for name in head.get_all("Provides-Extra") or []}
    for line in head.get_all("Requires-Dist") or []:
        wanted = Requirement(line)
        named = [extra for extra in extras if f'"{extra}"' in str(wanted.marker).replace("'", '"')]
        for names in [extras[extra] for extra in named] or [always]:
            names.add(canonicalize_name(wanted.name))
    return always, extras


def test_built_once_and_again_only_when_lost(wheel: Wheel) -> None:
    cache = wheel.folder.parent.parent
    before = wheel.path.stat().st_mtime_ns
    assert build_wheel(cache) == wheel
    assert wheel.path.stat().st_mtime_ns == before
    body = wheel.path.read_bytes()
    wheel.path.unlink()
    assert build_wheel(cache) == wheel
    assert wheel.path.read_bytes() == body


def test_many_at_once_leave_one_whole_wheel(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = set(pool.map(lambda _: build_wheel(tmp_path), range(4)))
    assert len(made) == 1
    only = made.pop()
    assert [p.name for p in only.folder.iterdir()] == [only.path.name]
    assert zipfile.ZipFile(only.path).testzip() is None


def test_uv_installs_it_and_python_imports_it(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path / "cache")
    venv = tmp_path / "venv"
    run = {"check": True, "capture_output": True, "text": True, "env": {**os.environ, "UV_OFFLINE": "1"}}
    subprocess.run([uv.find_uv_bin(), "venv", "--python", sys.executable, str(venv)], **run)
    source = ["--no-deps", "--no-index", "--find-links", str(wheel.folder)]
    pinned = f"osmosis-ai=={wheel.version}"
    subprocess.run([uv.find_uv_bin(), "pip", "install", "--python", str(venv), *source, pinned], **run)
    code = "import osmosis, osmosis_ai, importlib.metadata as m; print(osmosis.__file__, m.version('osmosis-ai'))"
    out = subprocess.run([str(venv / "bin" / "python"), "-I", "-c", code], **run).stdout.split()
    assert out[0].startswith(str(venv))
    assert out[1] == wheel.version
    assert (venv / "bin" / "osmosis").exists()
    dependencies = str(Path(filelock.__file__).parents[1])
    again = (
        f"import sys; sys.path.append({dependencies!r}); import pathlib, osmosis.base.installation as w; "
        f"print(w.build_wheel(pathlib.Path({str(tmp_path)!r})).version)"
    )
    same = subprocess.run([str(venv / "bin" / "python"), "-I", "-c", again], **run).stdout.strip()
    assert same == wheel.version, "an installed wheel of the same content makes another wheel"


def test_a_rollout_server_imports_nothing_but_what_the_wheel_requires() -> None:
    ours = {canonicalize_name(Requirement(line).name) for line in metadata.requires("osmosis-ai") or []}
    modules = [
        module
        for module, owners in metadata.packages_distributions().items()
        if {canonicalize_name(owner) for owner in owners} <= ours - ROLLOUT
    ]
    assert "sqlalchemy" in modules
    code = f"import sys; sys.modules.update(dict.fromkeys({modules!r})); import osmosis.jobs.server.serve_entrypoint"
    subprocess.run([sys.executable, "-c", code], check=True)
