"""Write the stubs of `osmosis` and `osmosis_ai` from their tables, so that type checkers and editors see their names.

Runs whenever the package is built or installed (also in place), and by `make lint`. The stubs are not kept in git.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path(__file__).parent / "src"
PACKAGE = SOURCE / "osmosis_ai"


def write_stubs(package: Path = PACKAGE) -> list[Path]:
    """Write one `.pyi` for each module of `names.json`; remove stubs of modules that are gone."""
    table = runpy.run_path(str(package / "_finder.py"))
    written = []
    for module in table["MODULES"]:
        path = package.joinpath(*module.split(".")[1:])
        path = path / "__init__.pyi" if table["is_package"](module) else path.with_suffix(".pyi")
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = ["# Written by hatch_build.py from names.json."]
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


def write_public_stub(package: Path = SOURCE / "osmosis") -> None:
    """Write the stub of `osmosis` from `_public.py`."""
    home_of = runpy.run_path(str(package / "_public.py"))["HOME_OF"]
    lines = ["# Written by hatch_build.py from _public.py."]
    lines += [f"from {home} import {name} as {name}" for name, home in sorted(home_of.items())]
    (package / "__init__.pyi").write_text("\n".join(lines) + "\n")


class Stubs(BuildHookInterface[Any]):
    """The build hook that Hatchling calls."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        write_stubs()
        write_public_stub()


if __name__ == "__main__":
    write_stubs()
    write_public_stub()
