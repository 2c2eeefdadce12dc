"""How long git takes to give the facts of a submit, in a repository of 5,000 files: `python benchmarks/git_facts.py`.

Prints milliseconds of the whole `read_source` and of each git call in it, best of ten. The bound is 50 ms.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from osmosis.base.git import Git
from osmosis.workspace.git import read_source

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from support.git_workspace import GitWorkspace

FILES = 5000


def best(work: Callable[[], object], rounds: int = 10) -> float:
    """Milliseconds of the fastest round."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times) * 1000


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        workspace = GitWorkspace(Path(folder) / "ws")
        for number in range(FILES):
            workspace.write(f"data/{number % 50}/{number}.txt", f"{number}\n")
        workspace.commit()
        workspace.add_remote()
        workspace.push()
        for number in range(3):
            workspace.write(f"data/0/new-{number}.txt", "new\n")
        git = Git(workspace.root)
        status = ("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all", "--", ".")
        print(f"{FILES} files: all facts {best(lambda: read_source(workspace.root)):.1f} ms")
        print(f"  git status      {best(lambda: git.text(*status)):.1f} ms")
        print(f"  git rev-parse   {best(lambda: git.text('rev-parse', '--show-prefix')):.1f} ms")
        print(f"  git get-url     {best(lambda: git.text('remote', 'get-url', 'origin')):.1f} ms")


if __name__ == "__main__":
    main()
