"""The secrets of a run, by name: from a file, registered, or from this environment for one run alone. Values go nowhere
but into the request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from osmosis.errors import ValidationError

from . import prompts
from .context import AppContext
from .secrets_file import read_secrets_file
from .submit_case import SubmitCase

if TYPE_CHECKING:
    from osmosis.client import PlatformClient


def find_secrets(case: SubmitCase) -> list[str]:
    """Each required name from `--secrets-file`, else registered, else from this environment; those that are nowhere."""
    required = case.config.secret_names()
    given = read_secrets_file(case.ctx, case.options.secrets_file) if case.options.secrets_file else {}
    if unknown := sorted(set(given) - set(required)):
        raise ValidationError(
            f"the secrets file has names that the config does not require: {', '.join(unknown)}",
            hint=f"add them to [secrets].required in {case.path.name}, or remove them",
        )
    case.provided.update(given)
    open_names = [name for name in required if name not in given]
    if not open_names:
        return []
    missing = [name for name in open_names if name not in case.asked.secrets]
    for name in list(missing):
        if value := case.ctx.environ.get(name):
            case.ctx.output.warn("SECRET_FROM_ENVIRONMENT", f"{name} taken from the environment, for this run only")
            case.provided[name] = value
            missing.remove(name)
    return missing


def nowhere(ctx: AppContext, client: PlatformClient, table: object, secrets_file: str | None) -> list[str]:
    """The names in the `[secrets]` of a config that has other errors, as far as it has some, that nothing gives."""
    required = table.get("required") if isinstance(table, dict) else None
    names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    given = read_secrets_file(ctx, secrets_file) if secrets_file and names else {}
    there = {row.name for row in client.secrets.all()} if names else set()
    return [name for name in dict.fromkeys(names) if not (name in given or name in there or ctx.environ.get(name))]


def ask_for_secrets(case: SubmitCase, missing: list[str]) -> None:
    for name in missing:
        value = prompts.hidden(case.ctx, f"Value of {name} (for this run only)", flags=["--secrets-file"])
        case.provided[name] = value
