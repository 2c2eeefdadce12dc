"""From an empty folder to a trained model that is measurably better, by the commands a person would type.

    python demo.py --dir .demo-train [--yes]

A base model of less than a million parameters is made and uploaded, evaluated, trained through the platform with the
rollout of the template `train`, evaluated again, and both evaluations are compared row by row. Everything stays in one
folder; run again, it trains once more. Ends with an error when the trained model is not better beyond chance.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from osmosis.workspace.git import identity_options

HERE = Path(__file__).parent
OSMOSIS = Path(sys.executable).with_name("osmosis")
CONFIG = "configs/{}/add.toml"


class Demo:
    """Runs commands in the workspace, each shown before it runs."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.environ = {
            **os.environ,
            "OSMOSIS_DATA_DIR": str(self.root / "platform"),
            "OSMOSIS_CONFIG_DIR": str(self.root / "config"),
        }
        self.cwd = self.root

    def run(self, *command: str, say: bool = True) -> None:
        """The command, with its output; ends the demo when it fails."""
        if say:
            print(f"\n$ {shlex.join(command)}", flush=True)
        program = str(OSMOSIS) if command[0] == "osmosis" else command[0]
        done = subprocess.run([program, *command[1:]], cwd=self.cwd, env=self.environ, check=False)
        if done.returncode:
            sys.exit(f"`{shlex.join(command)}` failed")

    def answer(self, *command: str) -> dict[str, Any]:
        """What a command says as JSON."""
        done = subprocess.run(
            [str(OSMOSIS), "--json", *command], cwd=self.cwd, env=self.environ, stdout=subprocess.PIPE, check=True
        )
        said: dict[str, Any] = json.loads(done.stdout)
        return said


def set_up(demo: Demo, yes: bool) -> None:
    """Platform, workspace, rollout, data, base model."""
    demo.root.mkdir(parents=True, exist_ok=True)
    demo.run("osmosis", "platform", "start")
    demo.run("osmosis", "login")
    workspace = demo.root / "demo"
    if not workspace.exists():
        demo.run("osmosis", "init", "demo")
    demo.cwd = workspace
    if not (workspace / "rollouts" / "add").exists():
        demo.run("osmosis", "rollout", "new", "add", "--template", "train")
        demo.run("osmosis", "dataset", "upload", "data/add.jsonl")
        for key, value in (("limit", "60"), ("n", "4"), ("batch_size", "32")):
            demo.run("osmosis", "config", "set", "add", f"evaluation.{key}", value)
    base = demo.root / "tiny"
    if not (base / "model.safetensors").exists():
        make = [sys.executable, str(HERE / "make_base.py"), str(base), "--cache", str(demo.root / "platform" / "cache")]
        demo.run(*make, *(["--yes"] if yes else []))
    demo.run("osmosis", "model", "upload", str(base), "--name", "tiny")


def push(demo: Demo, model: str, config: str = "add") -> None:
    """The eval config with this model, committed and pushed."""
    demo.run("osmosis", "config", "set", config, "experiment.model_path", model)
    demo.run("git", "add", "-A")
    demo.run("git", *identity_options(demo.cwd), "commit", "-q", "--allow-empty", "-m", f"Evaluate {model}")
    demo.run("git", "push", "-q")


def newest(demo: Demo, kind: str) -> str:
    """The name of the newest run of a kind."""
    listed = demo.answer(kind, "list")
    runs = next(value for value in listed.values() if isinstance(value, list) and value)
    return str(runs[0]["name"])


def judged(demo: Demo, before: str, after: str) -> int:
    """Says how much better the trained model is, row by row; 1 when the interval does not exclude no difference."""
    demo.run("osmosis", "eval", "compare", before, after, "--flips", "2")
    interval = demo.answer("eval", "compare", before, after)["data"]["difference_ci"]
    return 0 if interval is not None and interval[0] > 0 else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dir", type=Path, default=Path(".demo-train"), help="folder for everything the demo makes")
    parser.add_argument("--yes", "-y", action="store_true", help="fetch whatever torch there is without asking")
    chosen = parser.parse_args()
    demo = Demo(chosen.dir)
    set_up(demo, chosen.yes)
    push(demo, "osmosis/tiny")
    demo.run("osmosis", "eval", "submit", CONFIG.format("eval"), "--yes", "--wait")
    demo.run("osmosis", "train", "submit", CONFIG.format("training"), "--yes", "--wait")
    trained = newest(demo, "train")
    demo.run("osmosis", "train", "show", trained)
    evaluations = []
    for model in ("tiny", trained):  # on rows that were not trained on
        push(demo, f"osmosis/{model}")
        held_out = ("--held-out-of", trained, "--yes", "--wait")
        demo.run("osmosis", "eval", "submit", CONFIG.format("eval"), *held_out)
        evaluations.append(newest(demo, "eval"))
    code = judged(demo, *evaluations)
    names = ("OSMOSIS_DATA_DIR", "OSMOSIS_CONFIG_DIR")
    variables = " ".join(f"{name}={shlex.quote(demo.environ[name])}" for name in names)
    print(f"\nWhat to do next, in {demo.cwd}:\n  export {variables}\n  osmosis model deploy {trained} --wait")
    print(f"  osmosis train show {trained}\n  osmosis model download {trained}")
    print("  osmosis platform stop  # `make clean` does that, too, and removes the folder", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
