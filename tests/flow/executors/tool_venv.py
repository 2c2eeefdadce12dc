"""A virtual environment with a tool that is too large for ours, made once and kept in the cache of tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import uv

from osmosis.base.locks import locked

INSTALL_S = 400


def tool_venv(cache: Path, name: str, *packages: str) -> Path:
    """Its `bin`. Skips the test, with the reason, where the packages cannot be had."""
    folder = cache / f"tools-{name}-{sys.version_info[0]}{sys.version_info[1]}"
    done = folder / "installed"
    with locked(folder.with_suffix(".lock")):
        if not done.exists():
            commands = (
                ["venv", "--quiet", "--clear", "--python", sys.executable, str(folder)],
                [
                    "pip",
                    "install",
                    "--quiet",
                    "--compile-bytecode",
                    "--python",
                    str(folder / "bin" / "python"),
                    *packages,
                ],
            )
            for words in commands:
                try:
                    made = subprocess.run(
                        [uv.find_uv_bin(), *words], env=os.environ, capture_output=True, text=True, timeout=INSTALL_S
                    )
                except subprocess.TimeoutExpired:
                    pytest.skip(f"{' '.join(packages)} could not be installed within {INSTALL_S} s")
                if made.returncode != 0:
                    pytest.skip(f"{' '.join(packages)} could not be installed: {made.stderr[-300:]}")
            done.touch()
    return folder / "bin"
