"""Writes the stubs of `osmosis_ai` from its table, so that type checkers and editors see its names as they are.

Runs whenever the package is built or installed (also in place), and by `make lint`. The stubs are not kept in git.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path(__file__).parent / "src" / "osmosis_ai"


def write_stubs(package: Path = PACKAGE) -> list[Path]:
    """One `.pyi` for each module of the table; stubs of modules that are gone are removed."""
    table = runpy.run_path(str(package / "_table.py"))
    written = []
    for module in table["MODULES"]:
        path = package.joinpath(*module.split(".")[1:])
        path = path / "__init__.pyi" if table["is_package"](module) else path.with_suffix(".pyi")
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = ["# Written by hatch_build.py from _table.py."]
        for name, home in sorted(table["names_of"](module).items()):
            source, _, attribute = home.partition(":")
            lines.append(f"from {source} import {attribute} as {name}")
        text = "\n".join(lines) + "\n"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
        written.append(path)
    for path in {*package.rglob("*.pyi")} - {*written}:
        path.unlink()
    return written


class Stubs(BuildHookInterface[Any]):
    """Hatchling's way to call us."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        write_stubs()


if __name__ == "__main__":
    write_stubs()
