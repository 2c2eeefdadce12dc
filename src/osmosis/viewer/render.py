"""The templates' environment and filters. Everything is escaped by default, and an unknown name is an error. A missing
value is an en dash, never a zero."""

import hashlib
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from osmosis._version import __version__
from osmosis.metrics.formats import NOTHING, count, dollars, duration, interval, number, percent, score, size
from osmosis.records.base import utc_now
from osmosis.records.run.rollout import Category

_FOLDER = Path(__file__).parent
TEMPLATES = _FOLDER / "templates"
STATIC = _FOLDER / "static"
"""Served under `/static`; addresses in templates contain a stamp of the content."""
SECURITY = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def build_environment(*folders: Path) -> Environment:
    loader = FileSystemLoader([*folders, TEMPLATES])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(FILTERS)
    # The stamp changes when any static file does, so that browsers may keep them for ever.
    digest = hashlib.sha256()
    for path in sorted(STATIC.rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    environment.globals.update(stamp=digest.hexdigest()[:12], version=__version__, static=False)
    return environment


ADVICE: dict[Category, str] = {
    Category.AGENT_ERROR: "The rollout's code raised an exception: the traceback on the rollout's page shows where.",
    Category.SCORE_ERROR: "The grader or score function raised an exception: its traceback shows where.",
    Category.INVALID_SCORE: "The score was not a finite number. Return a float, or raise an error when no score "
    "can be computed.",
    Category.TIMEOUT: "Raise agent_workflow_timeout_s or grader_timeout_s, lower batch_size, or look for a call "
    "that blocks the event loop.",
    Category.RATE_LIMIT: "Lower batch_size or raise the provider's limit, then retry the failed rollouts.",
    Category.AUTH: "The model provider rejected the API key. Set the secret again: osmosis secret set NAME.",
    Category.MODEL_NOT_FOUND: "Check experiment.model_path in the config.",
    Category.BAD_REQUEST: "The provider rejected the request. Check that the model supports its parameters and tools.",
    Category.CONTEXT_LENGTH: "The conversation outgrew the model. Shorten prompts and tool results, or take "
    "another model.",
    Category.SERVER_ERROR: "The provider had an error. Retry the failed rollouts later.",
    Category.CONNECTION: "The model's endpoint could not be reached. Check base_url and the network.",
    Category.BAD_RESPONSE: "The rollout server's reply was not a valid message. See the run's log.",
    Category.SERVER_DIED: "The rollout server exited. See the last lines of the run's log.",
    Category.CANCELLED: "The rollout was stopped before it finished. Retry the failed rollouts.",
    Category.BUDGET: "The run's budget was used up. Raise it, or run fewer rows.",
    Category.UNKNOWN: "See the rollout's page and the run's log.",
}


def ago(moment: datetime | None) -> str:
    if moment is None:
        return NOTHING
    seconds = (utc_now() - moment).total_seconds()
    apart = abs(seconds)
    if apart < 60:
        return "just now"
    for limit, divisor, unit in ((3600, 60, "min"), (86400, 3600, "h"), (86400 * 365, 86400, "days")):
        if apart < limit:
            amount = int(apart // divisor) if seconds > 0 else round(apart / divisor)
            text = f"{amount} {'day' if unit == 'days' and amount == 1 else unit}"
            return f"{text} ago" if seconds > 0 else f"in {text}"
    return f"{moment:%Y-%m-%d}"


def moment(value: datetime | None) -> str:
    return NOTHING if value is None else f"{value:%Y-%m-%d %H:%M:%S} UTC"


def iso(value: datetime | None) -> str:
    return value.isoformat() if value else ""


def pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def advice(category: Category | str) -> str:
    try:
        return ADVICE[Category(category)]
    except ValueError:
        return ADVICE[Category.UNKNOWN]


def label(value: Any) -> str:
    return str(getattr(value, "value", value)).replace("_", " ").replace("-", " ")


def heading(text: str) -> str:
    return text[:1].upper() + text[1:]


_FILTERS = (
    number, score, percent, interval, count, dollars, duration, size, ago, moment, iso, pretty, advice, label, heading,
)  # fmt: skip
FILTERS: dict[str, Callable[..., Any]] = {function.__name__: function for function in _FILTERS}
