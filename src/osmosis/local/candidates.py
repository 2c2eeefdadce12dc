"""Candidates of a search: copies of a rollout in which some files have other texts.

The first one, the seed, is copied from the working tree, and every other from it, so that edits during a search change
nothing."""

import difflib
import hashlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from osmosis.base.files import write_text
from osmosis.errors import Conflict, ValidationError
from osmosis.records.config.optimize import Optimize
from osmosis.sdk.prompts import FOLDER, SUFFIX

SEED = "seed"
Texts = Mapping[str, str]
"""Text by file, relative to the rollout directory."""
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", "node_modules")


@dataclass(frozen=True)
class Candidates:
    folder: Path
    workspace: Path
    rollout: Path
    """Relative to the workspace, and to the folder of each candidate."""
    seed: Texts

    def open(self, texts: Texts) -> tuple[str, Path]:
        """Return the name and the folder of a candidate; write the folder when it is new.

        Files end as the seed's do: a model does not see where a file ends."""
        ends = {file: "\n" if before.endswith("\n") else "" for file, before in self.seed.items()}
        files = {file: text.rstrip("\n") + ends[file] for file, text in texts.items()}
        is_seed = files == self.seed
        name = SEED if is_seed else hashlib.sha256(orjson.dumps(sorted(files.items()))).hexdigest()[:10]
        target, draft = self.folder / name, self.folder / f".{name}"
        if not target.exists():
            source = self.workspace if is_seed else self.folder / SEED
            shutil.rmtree(draft, ignore_errors=True)
            shutil.copytree(source / self.rollout, draft / self.rollout, ignore=_LEFT_OUT)
            for file, text in files.items():
                write_text(draft / self.rollout / file, text)
            draft.rename(target)
        return name, target

    def diff(self, name: str) -> Iterator[str]:
        """Yield the lines of a diff from the seed to a candidate, as `git apply` takes it."""
        for file, text in self.seed.items():
            path = (self.rollout / file).as_posix()
            after = (self.folder / name / path).read_text("utf-8")
            for line in difflib.unified_diff(text.splitlines(True), after.splitlines(True), f"a/{path}", f"b/{path}"):
                yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"

    def apply(self, name: str) -> None:
        """Write a candidate's texts to the working tree; raise Conflict when a file there is no longer the seed's."""
        for file, before in self.seed.items():
            if (self.workspace / self.rollout / file).read_text("utf-8") != before:
                problem = f"{self.rollout / file} has changed since the search began, so nothing was written"
                raise Conflict(problem, hint=f"the new texts are in {self.folder / name / self.rollout}")
        for file in self.seed:
            shutil.copyfile(self.folder / name / self.rollout / file, self.workspace / self.rollout / file)


def read_texts(rollout: Path, options: Optimize) -> dict[str, str]:
    """Read the files that a config wants improved; raise ValidationError for one that is not there, or is no text."""
    names = [*(f"{FOLDER}/{name}{SUFFIX}" for name in options.prompts), *options.files]
    names = names or sorted(f"{FOLDER}/{path.name}" for path in (rollout / FOLDER).glob(f"*{SUFFIX}"))
    if not names:
        problem = f"rollouts/{rollout.name} has no {FOLDER}/*{SUFFIX}, so there is nothing to improve"
        raise ValidationError(problem, hint=f"write {FOLDER}/NAME.md and read ctx.prompts, or name [optimize] files")
    try:
        return {name: (rollout / name).read_text("utf-8") for name in names}
    except (OSError, UnicodeDecodeError) as error:
        raise ValidationError(f"a text cannot be read: {error}", hint="correct [optimize] prompts or files") from None
