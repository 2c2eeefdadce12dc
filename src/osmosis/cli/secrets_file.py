"""A file of `NAME=value` lines, as `--secrets-file` and `secret import` take it. Its values are in no message."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis.errors import ValidationError

from .context import AppContext

SecretsFile = Annotated[
    str | None, typer.Option("--secrets-file", help="File of NAME=value lines, used for this run only; - is stdin")
]


def read_secrets_file(ctx: AppContext, name: str) -> dict[str, str]:
    """`NAME=value` lines of a file or of standard input (`-`). A bad line is named by its number only."""
    if name == "-":
        text = ctx.stdin.read()
    else:
        path = ctx.path(name)
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            message = f"cannot read the secrets file {path}: {_reason(error)}"
            raise ValidationError(message, hint="--secrets-file FILE") from None
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip().removeprefix("export ")
        if not stripped or stripped.startswith("#"):
            continue
        key, equals, value = stripped.partition("=")
        if not equals or not key.strip().isidentifier():
            raise ValidationError(f"line {number} of the secrets file is not NAME=value", hint="write NAME=value")
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        values[key.strip()] = value
    return values


def _reason(error: Exception) -> str:
    return error.strerror or "unreadable" if isinstance(error, OSError) else "it is not text"
