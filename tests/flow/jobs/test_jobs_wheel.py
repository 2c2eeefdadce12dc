"""The wheel of the running installation, installed by uv into an environment of its own, from no index."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import uv

from osmosis.base.wheel import build_wheel

pytestmark = pytest.mark.flow


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
    again = f"import pathlib, osmosis.base.wheel as w; print(w.build_wheel(pathlib.Path({str(tmp_path)!r})).version)"
    same = subprocess.run([str(venv / "bin" / "python"), "-I", "-c", again], **run).stdout.strip()
    assert same == wheel.version, "an installed wheel of the same content makes another wheel"
