"""`doctor --imports`: entrypoints are imported in their own environments and processes, each fault is named."""

import json
import os
from pathlib import Path

import pytest

from osmosis.cli.main import main
from support.git_workspace import GitWorkspace

pytestmark = pytest.mark.network


def test_each_fault_of_an_import_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workspace = GitWorkspace(tmp_path / "ws")
    project = '[project]\nname = "{name}"\nversion = "0.1.0"\nrequires-python = ">=3.10"\ndependencies = [{needs}]\n'

    def rollout(name: str, main_py: str, needs: str = '"osmosis-ai>=1"') -> None:
        workspace.write(f"rollouts/{name}/main.py", main_py)
        workspace.write(f"rollouts/{name}/pyproject.toml", project.format(name=name, needs=needs))

    rollout("multiply", "import osmosis\n\nif __name__ == '__main__':\n    raise SystemExit('must not run')\n")
    rollout("forgotten", "import simpleeval\n")
    rollout("crashes", "def build():\n    raise RuntimeError('no such tool')\n\nbuild()\n")
    rollout("impossible", "", '"osmosis-ai>=1", "a-package-nobody-has-made==99"')
    environ = {
        **os.environ,  # how this machine reaches its package index
        "OSMOSIS_CONFIG_DIR": str(tmp_path / "config"),
        "OSMOSIS_DATA_DIR": str(tmp_path / "data"),
        "OSMOSIS_CACHE_DIR": str(tmp_path / "cache"),
        "OSMOSIS_PLATFORM_URL": "http://127.0.0.1:1",
    }
    code = main(["doctor", "--imports", "--json"], environ=environ, cwd=workspace.root)
    said = json.loads(capsys.readouterr().out)
    assert code == 1
    found = {f["where"]: f for f in said["data"]["findings"] if f["code"] in ("import-failed", "environment")}
    assert set(found) == {
        "rollouts/forgotten/main.py",
        "rollouts/crashes/main.py",
        "rollouts/impossible/pyproject.toml",
    }
    forgotten = found["rollouts/forgotten/main.py"]
    assert "No module named 'simpleeval'" in forgotten["what"]
    assert forgotten["fix"] == "add the package to dependencies in rollouts/forgotten/pyproject.toml"
    crash = found["rollouts/crashes/main.py"]
    assert "RuntimeError: no such tool" in crash["what"]
    assert 'File "main.py", line 2' in crash["fix"]
    assert "a-package-nobody-has-made" in found["rollouts/impossible/pyproject.toml"]["what"]
