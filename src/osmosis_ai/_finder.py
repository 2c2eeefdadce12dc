"""Create the modules of the table when they are imported: they have no files of their own.

Each name is loaded when it is first used, so importing a module loads nothing else."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from osmosis_ai._table import MODULES, is_package, names_of


class _Aliases(MetaPathFinder, Loader):
    """Find and create the modules of the table that have no file."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in MODULES:
            return None
        return ModuleSpec(fullname, self, origin="osmosis_ai._table", is_package=is_package(fullname))

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


def install(package: str) -> None:
    """Make the package offer its names and its modules importable."""
    _offer(sys.modules[package])
    sys.meta_path.insert(0, _Aliases())  # first: a folder that holds only stubs looks like a package, too
