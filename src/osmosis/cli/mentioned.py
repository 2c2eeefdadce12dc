"""A command with only those of its options that a line mentions: typer builds a validator for every option of a
command before it reads the line, which took a tenth of the start of an evaluation with sixty of them.

An option that is left out here has the default that it has anyway. Whoever parses with fewer options and fails asks
the whole command, which knows what was meant.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

HELP = ("-h", "--help")


def with_mentioned(command: Callable[..., Any], words: Sequence[str]) -> Callable[..., Any] | None:
    """`command` with its arguments and the options in `words`; None where that would be all, or help is wanted."""
    said = {word.split("=", 1)[0] for word in words if word.startswith("-")}
    if not said.isdisjoint(HELP):
        return None
    # `-yq` is two options, `-n4` an option and its value.
    letters = {f"-{letter}" for word in said if not word.startswith("--") for letter in word[1:]}
    # Not `get_type_hints`: before Python 3.11 that makes another type of one whose default is None.
    every = list(inspect.signature(command, eval_str=True).parameters.values())
    kept = [one for one in every if _is_meant(one, said | letters)]
    if len(kept) == len(every):
        return None

    @functools.wraps(command)
    def narrow(*positional: Any, **given: Any) -> Any:
        return command(*positional, **given)

    narrow.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]  # read by typer
    narrow.__annotations__ = {}
    return narrow


def _is_meant(parameter: inspect.Parameter, said: set[str]) -> bool:
    """Also when in doubt: whatever has a value from elsewhere than the line stays."""
    import typer  # resolving words needs no typer

    option = next(
        (one for one in getattr(parameter.annotation, "__metadata__", ()) if isinstance(one, typer.models.OptionInfo)),
        None,
    )
    if option is None or parameter.default is inspect.Parameter.empty:
        return True
    if option.envvar or option.prompt or option.callback or option.is_eager or option.default_factory:
        return True
    name = parameter.name.replace("_", "-")
    declared = [one for one in (option.default, *(option.param_decls or ())) if isinstance(one, str)]  # as annotated
    names = declared or [f"--{name}", f"--no-{name}"]
    return any(one.strip() in said for spelt in names for one in spelt.split("/"))
