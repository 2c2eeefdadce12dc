"""Ready-made agents, of `harnesses.toml`, and any other command as one; what each needs of this machine."""

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from osmosis.base.files import tomllib
from osmosis.errors import ValidationError
from osmosis.sandbox.bubblewrap import SYSTEM, python_folders


@dataclass(frozen=True, slots=True)
class Harness:
    command: str
    acp: str = ""
    """The command of it that speaks the Agent Client Protocol: `acp:NAME`."""
    use: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    is_acp: bool = False


def load_harnesses() -> dict[str, Harness]:
    table = tomllib.loads(Path(__file__).with_name("harnesses.toml").read_text(encoding="utf-8"))
    return {name: Harness(**fields) for name, fields in table.items()}


def find_harness(command: str) -> Harness:
    words = command.strip()
    program = re.sub(r'^("?)acp:', r"\1", words)
    ready = load_harnesses().get(program)
    if program == words:
        return ready or Harness(command)
    if ready is None:
        return Harness(program, is_acp=True)
    if not ready.acp:
        speakers = ", ".join(f"acp:{name}" for name, harness in load_harnesses().items() if harness.acp)
        raise ValidationError(f"{program} does not speak the Agent Client Protocol", hint=f"{program}, or {speakers}")
    return replace(ready, command=ready.acp, is_acp=True)


def program_folders(command: str, search_path: str) -> tuple[Path, ...]:
    folders: dict[Path, None] = {}
    words = [word.strip("\"'") for word in command.split()]
    for word in [*words[:1], "node", "python3", *(word for word in words[1:] if "/" in word)]:
        program = shutil.which(word, path=search_path)
        if program is None:
            continue
        for path in (Path(program), Path(program).resolve()):
            if not str(path).startswith(SYSTEM):
                folders |= dict.fromkeys((*python_folders(path), _installation(path)))
    return tuple(path for path in folders if path.is_dir())


def _installation(program: Path) -> Path:
    modules = [parent for parent in program.parents if parent.name == "node_modules"]
    if modules:
        return modules[-1]
    prefix = program.parent.parent
    is_shared = prefix.name == ".local" or Path.home().is_relative_to(prefix)
    return program.parent if is_shared else prefix
