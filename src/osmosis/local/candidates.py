"""Candidates of a search: copies of a rollout in which some files have other texts.

The first one, the seed, is copied from the working tree, and every other from it, so that edits during a search change
nothing."""

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from osmosis.base.files import write_text
from osmosis.errors import Conflict, ValidationError
from osmosis.records.config.optimize import SEED, Optimization, Optimize
from osmosis.sdk.messages import FOLDER, SUFFIX

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
    keep_links: bool = False
    """Copy links as links: of code that may not read this machine's files, also not by a link to them."""
    opened: dict[str, Texts] = field(default_factory=dict)
    """Texts of each candidate by its name, in the order of their first use."""

    def open(self, texts: Texts) -> tuple[str, Path]:
        """Return the name and the folder of a candidate; write the folder when it is new.

        Files end as the seed's do: a model does not see where a file ends."""
        ends = {file: "\n" if before.endswith("\n") else "" for file, before in self.seed.items()}
        files = {file: text.rstrip("\n") + ends[file] for file, text in texts.items()}
        is_seed = files == self.seed
        name = SEED if is_seed else hashlib.sha256(orjson.dumps(sorted(files.items()))).hexdigest()[:10]
        self.opened.setdefault(name, files)
        target, draft = self.folder / name, self.folder / f".{name}"
        if not target.exists():
            source = (self.workspace if is_seed else self.folder / SEED) / self.rollout
            shutil.rmtree(draft, ignore_errors=True)
            shutil.copytree(source, draft / self.rollout, ignore=_LEFT_OUT, symlinks=self.keep_links)
            for file, text in files.items():
                write_text(draft / self.rollout / file, text)
            draft.rename(target)
        return name, target


def apply_winner(workspace: Path, optimization: Optimization) -> None:
    """Write the winner's texts to the working tree; raise Conflict when a file there is no longer the seed's."""
    folder = workspace / optimization.folder
    for file, before in optimization.seed.items():
        if not (folder / file).is_file() or (folder / file).read_text("utf-8") != before:
            problem = f"{optimization.folder / file} is not the text that was optimized, so nothing was written"
            raise Conflict(problem, hint="restore it (git log shows its versions), or apply the diff by hand")
    for file, text in optimization.texts(optimization.winner).items():
        write_text(folder / file, text)


def read_texts(rollout: Path, options: Optimize) -> dict[str, str]:
    """Read the files that a config wants improved; raise ValidationError for one that is not there, or is no text."""
    names = [*(f"{FOLDER}/{name}{SUFFIX}" for name in options.prompts), *options.files]
    names = names or sorted(f"{FOLDER}/{path.name}" for path in (rollout / FOLDER).glob(f"*{SUFFIX}"))
    if not names:
        problem = f"rollouts/{rollout.name} has no {FOLDER}/*{SUFFIX}, so there is nothing to improve"
        raise ValidationError(problem, hint=f"write {FOLDER}/NAME.md and read ctx.prompts, or name [optimize] files")
    if linked := [name for name in names if (rollout / name).resolve() != rollout.resolve() / name]:
        raise ValidationError(f"a text cannot be a link: {linked[0]}", hint="copy the file into the rollout")
    try:
        return {name: (rollout / name).read_text("utf-8") for name in names}
    except (OSError, UnicodeDecodeError) as error:
        raise ValidationError(f"a text cannot be read: {error}", hint="correct [optimize] prompts or files") from None
