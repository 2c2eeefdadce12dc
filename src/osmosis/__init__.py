"""osmosis: from an empty folder to an evaluated and reinforcement-trained LLM agent. Everything public is importable
from here, and typed. A name loads the module it lives in when it is first used, so that `import osmosis` costs nothing
and loads no vendor library."""

from importlib import import_module
from typing import Any

from osmosis._public import HOME_OF
from osmosis._version import __version__ as __version__

__all__ = sorted(HOME_OF)


def __getattr__(name: str) -> Any:  # type checkers read the stub
    home = HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'osmosis' has no attribute {name!r}")
    try:
        value = globals()[name] = getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] == "osmosis":
            raise
        message = f"osmosis.{name} needs {error.name}, which is not installed here: python -m pip install {error.name}"
        raise ModuleNotFoundError(message, name=error.name) from error
    return value


def __dir__() -> list[str]:
    return list(__all__)
