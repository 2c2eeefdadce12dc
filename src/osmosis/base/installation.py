"""How this copy was installed, and the commands that add a package to it or replace it.

No hint names `osmosis-ai` on an index where this copy does not come from one: there the name may be another program's.
"""

import importlib.util
import json
import re
import shlex
import sys
from importlib import metadata
from urllib.parse import urlsplit
from urllib.request import url2pathname

DISTRIBUTION = "osmosis-ai"
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


def install_command(*packages: str) -> str:
    """Return the command that installs packages into this Python; one that `uv` made has no pip."""
    python = shlex.quote(sys.executable)
    has_pip = importlib.util.find_spec("pip") is not None
    return " ".join(
        [f"{python} -m pip install" if has_pip else f"uv pip install --python {python}", *map(shlex.quote, packages)]
    )


def extra_command(extra: str) -> str:
    """Return the command that installs what an extra needs, whether or not an index has this distribution."""
    packages = [
        requirement.strip()
        for requirement, _, marker in (line.partition(";") for line in metadata.requires(DISTRIBUTION) or [])
        if (match := _EXTRA.search(marker)) and match[1] == extra
    ]
    if packages:
        return install_command(*packages)
    return f"add osmosis-ai[{extra}] to dependencies in the rollout's pyproject.toml"  # the wheel of rollouts has few


def upgrade_command() -> str:
    """Return the command that replaces this copy by a newer one from where it came from."""
    origin = json.loads(metadata.distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    url = str(origin.get("url", ""))
    if "dir_info" in origin:
        folder = shlex.quote(url2pathname(urlsplit(url).path))
        editable = "-e " if origin["dir_info"].get("editable") else ""
        return f"git -C {folder} pull && {install_command()} {editable}{folder}"
    if "vcs_info" in origin:
        return install_command("--upgrade", f"{DISTRIBUTION} @ {origin['vcs_info']['vcs']}+{url}")
    return install_command("--upgrade", "NEWER_WHEEL" if url else DISTRIBUTION)
