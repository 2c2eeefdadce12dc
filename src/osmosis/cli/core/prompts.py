"""Questions to the person at the terminal; elsewhere an error names the flags that answer them."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from osmosis.cli.core.context import AppContext
from osmosis.cli.core.results import OperationResult
from osmosis.errors import InteractiveRequired


def confirm(ctx: AppContext, question: str, *, default: bool = True) -> bool:
    if ctx.options.yes:
        return True
    require_person(ctx, question, ["--yes"])
    import questionary

    return bool(_ask(questionary.confirm(question, default=default)))


class Declined(Exception):
    def __init__(self, result: OperationResult) -> None:
        super().__init__(result.message)
        self.result = result


def agree(ctx: AppContext, question: str, operation: str, *, default: bool = True, **resource: object) -> None:
    if not confirm(ctx, question, default=default):
        raise Declined(OperationResult(operation, "Cancelled.", resource, status="cancelled"))


def ask(
    ctx: AppContext, question: str, *, flag: str, default: str = "", validate: Callable[[str], bool | str] | None = None
) -> str:
    require_person(ctx, question, [flag])
    import questionary

    return str(_ask(questionary.text(question, default=default, validate=validate)))


def choose(
    ctx: AppContext, question: str, choices: Sequence[tuple[str, str]], *, flag: str, default: str | None = None
) -> str:
    require_person(ctx, question, [flag])
    import questionary

    options = [questionary.Choice(title=title, value=value) for value, title in choices]
    return str(_ask(questionary.select(question, choices=options, default=default)))


def hidden(ctx: AppContext, question: str, *, flags: Sequence[str]) -> str:
    require_person(ctx, question, flags)
    import questionary

    return str(_ask(questionary.password(question)))


def require_person(ctx: AppContext, question: str, flags: Sequence[str]) -> None:
    if not ctx.interactive:
        named = " or ".join(flags)
        message = f"this needs an answer, and there is no terminal to ask on: {question}"
        raise InteractiveRequired(message, hint=f"give {named}", prompt=question, flags=list(flags))


def _ask(question: Any) -> object:
    answer = question.unsafe_ask()  # raises KeyboardInterrupt instead of returning None
    if answer is None:
        raise KeyboardInterrupt
    return answer


def open_page(ctx: AppContext, url: str) -> bool:
    desktop = sys.platform in ("darwin", "win32") or ctx.environ.get("DISPLAY") or ctx.environ.get("WAYLAND_DISPLAY")
    if not desktop or not ctx.interactive:
        return False
    import webbrowser

    return webbrowser.open(url)
