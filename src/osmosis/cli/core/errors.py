"""Unexpected exceptions: of the machine, and bugs, with a report in a file without secrets that is sent nowhere."""

import errno
import platform as machine
import re
import shlex
import tempfile
import traceback
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from osmosis._version import __version__
from osmosis.base import paths
from osmosis.base.files import FULL
from osmosis.base.installation import module_command
from osmosis.base.redact import Redactor, without_credentials
from osmosis.errors import InternalError, OsmosisError, ValidationError

_CLOSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_OTHER = {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG}
_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL)", re.IGNORECASE)


def explain_exception(error: Exception, words: Sequence[str], environ: Mapping[str, str]) -> OsmosisError:
    if isinstance(error, ModuleNotFoundError) and (command := module_command(error.name or "")):
        return OsmosisError(f"this needs {error.name}, which is not installed", hint=command)
    refused = refused_by_machine(error) if isinstance(error, OSError) else None
    return refused or report_bug(error, words, environ)


def refused_by_machine(error: OSError) -> OsmosisError | None:
    if error.errno not in FULL | _CLOSED | _OTHER or isinstance(error, ConnectionError):
        return None
    reason = (error.strerror or "refused").lower()
    # Of two names (a copy, a rename) the second is the one that is written.
    path = next((name for name in (error.filename2, error.filename) if isinstance(name, str)), None)
    if path is None:
        hint = "check free space: df -h ."
        return ValidationError(f"cannot write: {reason}", hint=hint) if error.errno in FULL else None
    folder = next((p for p in Path(path).parents if p.is_dir()), Path("/"))
    look = "df -h" if error.errno in FULL else "ls -ld"
    return ValidationError(f"cannot use {path}: {reason}", hint=f"{look} {shlex.quote(str(folder))}", path=path)


def report_bug(bug: BaseException, words: Sequence[str], environ: Mapping[str, str]) -> InternalError:
    trace = "".join(traceback.format_exception(type(bug), bug, bug.__traceback__))
    versions = f"osmosis-ai {__version__}\nPython {machine.python_version()} on {machine.platform()}"
    text = redacted(f"{versions}\ncommand: osmosis {' '.join(words)}\n\n{trace}", words, environ)
    path = _write(text, environ)
    kind = type(bug).__name__
    message = f"bug in osmosis: {kind}: {redacted(str(bug), words, environ)[:500]}"
    details = {"report": str(path), "exception": kind}
    if environ.get("OSMOSIS_DEBUG") == "1":
        details["traceback"] = text
        message += "\n" + text
    return InternalError(message, hint=f"report it with the text in {path} (known secrets are removed)", **details)


def redacted(text: str, words: Sequence[str], environ: Mapping[str, str]) -> str:
    text = without_credentials(Redactor(_secrets(words, environ)).text(text))
    home = environ.get("HOME")
    return text.replace(home, "~") if home and len(home) > 1 else text


def _secrets(words: Sequence[str], environ: Mapping[str, str]) -> Iterable[str]:
    for name, value in environ.items():
        if _SECRET_NAME.search(name) and not name.endswith(("_ENV", "_FILE", "_URL")):
            yield value
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name.startswith("--") and _SECRET_NAME.search(name) and not name.endswith(("-env", "-file")):
            yield value if equals else following


def _write(text: str, environ: Mapping[str, str]) -> Path:
    name = f"osmosis-bug-{datetime.now(timezone.utc):%Y%m%dT%H%M%S%f}.txt"
    for folder in (paths.cache_dir(environ) / "reports", Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
            return folder / name
        except OSError:
            continue
    return Path(name)
