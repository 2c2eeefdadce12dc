"""What a sandbox needs to run a workflow: a folder with our wheel, the code's requirements and one shell script.

The same folder goes into a running sandbox, when its agent is set up, or into the image, when the Dockerfile is
patched. The script installs nothing where a Python already has everything. osmosis itself comes from our wheel: a
package index may have something else under that name.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

from osmosis.base.json_types import JsonObject
from osmosis.base.wheel import DISTRIBUTION, build_wheel

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = "/osmosis"
SDK = f"{ROOT}/sdk"
CODE = f"{ROOT}/code"
PROTOCOL = "1"
"""Of the request and the result of `inside.py`; an SDK that stands in an image already must speak the same."""
IN_CONTEXT = "osmosis-sdk"
"""The folder's name beside a patched Dockerfile."""

INSTALL = f"""#!/bin/sh
# Writes into ../python which Python runs the workflow: one that has all it needs, or a new environment's.
set -eu
cd "$(dirname "$0")"
root=$(cd .. && pwd)
for python in "$root/venv/bin/python" python3 python; do
    if "$python" -m osmosis.sdk.harbor.inside --check {PROTOCOL} requirements.txt >/dev/null 2>&1; then
        command -v "$python" >"$root/python"
        exit 0
    fi
done
base=
for python in python3 python python3.13 python3.12 python3.11 python3.10; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then
        base=$(command -v "$python")
        break
    fi
done
rm -rf "$root/venv"
if command -v uv >/dev/null 2>&1; then
    uv venv --quiet --no-project ${{base:+--python "$base"}} "$root/venv"
    uv pip install --quiet --python "$root/venv/bin/python" --requirements requirements.txt
elif [ -n "$base" ]; then
    "$base" -m venv "$root/venv"
    "$root/venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement requirements.txt
else
    echo "this image has neither uv nor Python 3.10 or later: a workflow needs one of them" >&2
    exit 3
fi
echo "$root/venv/bin/python" >"$root/python"
"""


def make_sdk(into: Path, cache_dir: Path, code_dir: Path | None) -> str:
    """Fills the folder `into`; returns its identity, a hash of what is in it, also kept there as `id`."""
    wheel = build_wheel(cache_dir)
    into.mkdir(parents=True)
    (into / wheel.path.name).write_bytes(wheel.path.read_bytes())
    (into / "requirements.txt").write_text("\n".join(requirements(code_dir, wheel.path.name)) + "\n", encoding="utf-8")
    (into / "install.sh").write_text(INSTALL, encoding="utf-8")
    digest = hashlib.sha256()
    for path in sorted(into.iterdir()):
        digest.update(f"{path.name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode())
    identity = digest.hexdigest()[:16]
    (into / "id").write_text(identity, encoding="utf-8")
    return identity


def requirements(code_dir: Path | None, wheel: str) -> list[str]:
    """What the code's `pyproject.toml` asks for, our own distribution replaced by the wheel with the same extras."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    extras: set[str] = set()
    others: list[str] = []
    for line in _declared(code_dir):
        wanted = Requirement(line)
        if canonicalize_name(wanted.name) == DISTRIBUTION:
            extras |= set(wanted.extras)
        else:
            others.append(line)
    # What drives the trials is no part of them.
    inside = sorted(extras - {"harbor"})
    return [f"./{wheel}" + (f"[{','.join(inside)}]" if inside else ""), *others]


def _declared(code_dir: Path | None) -> list[str]:
    path = None if code_dir is None else code_dir / "pyproject.toml"
    if path is None or not path.is_file():
        return []
    project: JsonObject = tomllib.loads(path.read_text(encoding="utf-8")).get("project") or {}
    return [str(line) for line in project.get("dependencies") or []]


def patch_dockerfile(text: str) -> str:
    """The Dockerfile with the SDK in its last stage; what was the user there is the user again afterwards."""
    users = re.findall(r"(?im)^\s*(FROM|USER)\s+(\S+)", text)
    user = None
    for word, value in users:
        user = None if word.upper() == "FROM" else value
    lines = ["", "# added by osmosis: the SDK, so that a trial need not install it"]
    if user is not None:
        lines.append("USER root")
    lines += [f"COPY {IN_CONTEXT}/ {SDK}/", f"RUN sh {SDK}/install.sh"]
    if user is not None:
        lines.append(f"USER {user}")
    return text.rstrip("\n") + "\n" + "\n".join(lines) + "\n"
