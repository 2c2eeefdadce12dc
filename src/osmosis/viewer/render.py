"""Templates as text: the viewer's own, and those of a server that shows runs among other pages.

Everything is escaped by default, and a name that a template does not know is an error. A server's templates come
first: its `base.html` is then the frame of the run pages, too.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from osmosis._version import __version__

from . import filters

HERE = Path(__file__).parent
TEMPLATES = HERE / "templates"
STATIC = HERE / "static"
"""Served under `/static`; addresses in templates carry a stamp of the content."""


SECURITY = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Headers of every page and file."""


def environment(*folders: Path) -> Environment:
    """The templates of these folders, then the viewer's."""
    found = Environment(
        loader=FileSystemLoader([*folders, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(filters.FILTERS)
    found.globals.update(stamp=_asset_stamp(), version=__version__, static=False)
    return found


def _asset_stamp() -> str:
    """Changes when any static file does, so that browsers may keep them for ever."""
    digest = hashlib.sha256()
    for path in sorted(STATIC.rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
