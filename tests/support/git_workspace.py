"""A real workspace in a real git repository with a real bare remote, for tests: a few small verbs, no fakes."""

from pathlib import Path

from osmosis.base.git import Git

MAIN = "print('a rollout')\n"
EVAL = """[experiment]
rollout = "multiply"
entrypoint = "main.py"
model_path = "offline/calculator"
dataset = "multiply"

[secrets]
required = []
"""


class GitWorkspace:
    """`root` is the working tree. Nothing is committed until `commit`."""

    def __init__(self, root: Path, *, git: bool = True) -> None:
        self.root = root
        for name in ("rollouts/multiply", "configs/eval", "configs/training", "data"):
            (root / name).mkdir(parents=True, exist_ok=True)
        self.write("rollouts/multiply/main.py", MAIN)
        self.write("rollouts/multiply/pyproject.toml", '[project]\nname = "multiply"\nversion = "0.1.0"\n')
        self.write("configs/eval/multiply.toml", EVAL)
        self.write(".gitignore", ".osmosis/\n.env\n")
        if git:
            self.git("init", "--quiet", "--template=")
            self.git("symbolic-ref", "HEAD", "refs/heads/main")
            for key, value in (("user.name", "Test"), ("user.email", "test@localhost"), ("commit.gpgsign", "false")):
                self.git("config", key, value)

    def write(self, path: str, text: str) -> Path:
        """Write a file below the root, folders included."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
        return file

    def git(self, *arguments: str) -> str:
        """One git command in the working tree; its output."""
        return Git(self.root).text(*arguments)

    def commit(self, message: str = "change") -> str:
        """Commit everything; the commit."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def add_remote(self, path: Path | None = None) -> Path:
        """A bare repository as `origin`: by default `owner/repo.git` beside the working tree."""
        bare = path or self.root.parent / "owner" / "repo.git"
        bare.mkdir(parents=True, exist_ok=True)
        Git(bare).text("init", "--quiet", "--bare", "--template=")
        Git(bare).text("symbolic-ref", "HEAD", "refs/heads/main")
        self.git("remote", "add", "origin", str(bare))
        return bare

    def push(self) -> None:
        """Push the current branch and follow it."""
        self.git("push", "--quiet", "--set-upstream", "origin", "HEAD")
