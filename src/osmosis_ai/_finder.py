"""Create the modules of `names.json` when they are imported: they have no files of their own.

`homes` there says what existing projects know of each of our modules: its name, or `theirs=ours` where it has another
one now; a module whose names they know from several of theirs has a group after a `#` for each. `modules` are those
that they import, each with the homes that it offers; `name=module:attribute` overrides where one word means another
thing in generation 0.2 than in 0.3. Each name is loaded when it is first used; an import loads nothing else."""

import json
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_TABLE = json.loads(Path(__file__).with_name("names.json").read_bytes())
HOMES: dict[str, list[str]] = _TABLE["homes"]
MODULES: dict[str, list[str]] = _TABLE["modules"]


class _Aliases(MetaPathFinder, Loader):
    """Find and create the modules of the table that have no file."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in MODULES:
            return None
        return ModuleSpec(fullname, self, origin="osmosis_ai/names.json", is_package=is_package(fullname))

    def exec_module(self, module: ModuleType) -> None:
        _offer(module)


def _offer(module: ModuleType) -> None:
    """Give the module its names, each loaded when it is first used."""
    homes = names_of(module.__name__)

    def find(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        source, _, attribute = home.partition(":")
        value = getattr(import_module(source), attribute)
        setattr(module, name, value)
        return value

    module.__dict__["__all__"] = sorted(homes)
    module.__dict__["__getattr__"] = find
    module.__dict__["__dir__"] = lambda: sorted({*module.__dict__, *homes})


def names_of(module: str) -> dict[str, str]:
    """Return what a module of `osmosis_ai` offers: each name with its home, `module:attribute`."""
    homes: dict[str, str] = {}
    for source in MODULES[module]:
        name, overrides, home = source.partition("=")
        if overrides:
            homes[name] = home
            continue
        for word in HOMES[source]:
            theirs, _, ours = word.partition("=")
            homes[theirs] = f"{source.partition('#')[0]}:{ours or theirs}"
    return homes


def is_package(module: str) -> bool:
    """Return whether other modules are inside it."""
    return any(other.startswith(f"{module}.") for other in MODULES)


def install(package: str) -> None:
    """Make the package offer its names and its modules importable."""
    _offer(sys.modules[package])
    sys.meta_path.insert(0, _Aliases())  # first: a folder that holds only stubs looks like a package, too
