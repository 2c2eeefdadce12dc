"""What a page in a browser is looked at for: the rules of axe, what the keyboard reaches, no scrolling sideways.

For `playwright` pages and the rules that come with `axe-playwright-python`; loads neither by itself.
"""

from importlib.resources import files
from typing import Any

_OUT_OF_REACH = """
() => [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary")]
  .filter((one) => one.checkVisibility() && !one.disabled && !one.closest("[aria-hidden=true]"))
  .filter((one) => one.tabIndex !== 0 && !one.matches("[type=radio]"))
  .map((one) => one.outerHTML.slice(0, 160))
"""
_WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
_TALL_HEADER = "document.querySelector('.top').offsetHeight > innerHeight / 7"


def axe_rules() -> str:
    """The script of the rules."""
    return files("axe_playwright_python").joinpath("axe.min.js").read_text()


def findings(page: Any, rules: str) -> list[tuple[str, list[str]]]:
    """What is seriously wrong with an open page, by what it is, with the elements; empty is good."""
    page.evaluate(rules)
    violations = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    found = [
        (one["id"], [node["html"][:160] for node in one["nodes"][:3]])
        for one in violations
        if one["impact"] in ("serious", "critical")
    ]
    if out_of_reach := page.evaluate(_OUT_OF_REACH):
        found.append(("no keyboard reaches it, or in another order", out_of_reach[:3]))
    if page.evaluate(_TALL_HEADER):
        found.append(("the header takes more than a seventh of the screen", []))
    if wider := page.evaluate(_WIDER):
        found.append((f"scrolls sideways by {wider} px", []))
    return found
