"""Opening a page in the person's browser, where there is a window to open it in; never one inside the terminal."""

from __future__ import annotations

import sys

from .context import AppContext


def open_page(ctx: AppContext, url: str) -> bool:
    """Try to open a page; False when there is no desktop, or nobody at the terminal."""
    desktop = sys.platform in ("darwin", "win32") or ctx.environ.get("DISPLAY") or ctx.environ.get("WAYLAND_DISPLAY")
    if not desktop or not ctx.interactive:
        return False
    import webbrowser

    return webbrowser.open(url)
