"""Ready-made agents, of `harnesses.toml`, and any other command as one."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from osmosis.base.toml import tomllib
from osmosis.errors import ValidationError


@dataclass(frozen=True, slots=True)
class Harness:
    command: str
    acp: str = ""
    """The command of it that speaks the Agent Client Protocol: `acp:NAME`."""
    environ: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    is_acp: bool = False


def load_harnesses() -> dict[str, Harness]:
    table = tomllib.loads(Path(__file__).with_name("harnesses.toml").read_text(encoding="utf-8"))
    return {name: Harness(**fields) for name, fields in table.items()}


def find_harness(command: str) -> Harness:
    """Return the ready-made agent of this name, or any command; each, after `acp:`, as one that speaks the protocol."""
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
