"""The person at the terminal: questions, and pages opened in the browser.

Asked only when there is somebody to ask; otherwise an error that names the flags. Every answer a question can give
has a flag, so nothing prompts under `--json`, `--plain`, in CI or in a pipe.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from osmosis.errors import InteractiveRequired

from .context import AppContext

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation")]


def confirm(ctx: AppContext, question: str, *, yes: bool, flag: str = "--yes", default: bool = True) -> bool:
    """True when the person agrees. `yes` is the value of the flag that answers beforehand."""
    if yes:
        return True
    require_person(ctx, question, [flag])
    import questionary

    return bool(_ask(questionary.confirm(question, default=default)))


def ask(
    ctx: AppContext,
    question: str,
    *,
    flag: str,
    default: str = "",
    validate: Callable[[str], bool | str] | None = None,
) -> str:
    """A line of text. `validate` returns True or what is wrong."""
    require_person(ctx, question, [flag])
    import questionary

    return str(_ask(questionary.text(question, default=default, validate=validate)))


def choose(
    ctx: AppContext,
    question: str,
    choices: Sequence[tuple[str, str]],
    *,
    flag: str,
    default: str | None = None,
) -> str:
    """One of `choices` (value, what the person reads)."""
    require_person(ctx, question, [flag])
    import questionary

    options = [questionary.Choice(title=title, value=value) for value, title in choices]
    return str(_ask(questionary.select(question, choices=options, default=default)))


def hidden(ctx: AppContext, question: str, *, flags: Sequence[str]) -> str:
    """A secret value, not echoed."""
    require_person(ctx, question, flags)
    import questionary

    return str(_ask(questionary.password(question)))


def require_person(ctx: AppContext, question: str, flags: Sequence[str]) -> None:
    """Raise `InteractiveRequired` naming the flags, unless somebody can be asked."""
    if not ctx.interactive:
        named = " or ".join(flags)
        raise InteractiveRequired(
            f"this needs an answer, and there is no terminal to ask on: {question}",
            hint=f"give {named}",
            prompt=question,
            flags=list(flags),
        )


def _ask(question: Any) -> object:
    answer = question.unsafe_ask()  # raises KeyboardInterrupt instead of returning None
    if answer is None:
        raise KeyboardInterrupt
    return answer


def open_page(ctx: AppContext, url: str) -> bool:
    """Try to open a page in the browser; False when there is no desktop, or nobody at the terminal."""
    desktop = sys.platform in ("darwin", "win32") or ctx.environ.get("DISPLAY") or ctx.environ.get("WAYLAND_DISPLAY")
    if not desktop or not ctx.interactive:
        return False
    import webbrowser

    return webbrowser.open(url)
