"""Build the folder that a sandbox needs to run a workflow: our wheel, the code's requirements and a shell script."""

import hashlib
import re
from pathlib import Path

from osmosis.base.toml import tomllib
from osmosis.base.wheel import DISTRIBUTION, build_wheel

ROOT = "/osmosis"
SDK = f"{ROOT}/sdk"
CODE = f"{ROOT}/code"
PROTOCOL = "1"
"""Version of `entrypoint.py`'s request and result; an SDK in an image must speak the same."""
IN_CONTEXT = "osmosis-sdk"


def make_sdk(into: Path, cache_dir: Path, code_dir: Path | None) -> str:
    """Fill the folder `into`; return a hash of its content, also kept there as `id`."""
    wheel = build_wheel(cache_dir)
    into.mkdir(parents=True)
    (into / wheel.path.name).write_bytes(wheel.path.read_bytes())
    (into / "requirements.txt").write_text("\n".join(requirements(code_dir, wheel.path.name)) + "\n", encoding="utf-8")
    script = Path(__file__).with_name("install.sh").read_text(encoding="utf-8")
    (into / "install.sh").write_text(script.replace("@PROTOCOL@", PROTOCOL), encoding="utf-8")
    digest = hashlib.sha256()
    for path in sorted(into.iterdir()):
        digest.update(f"{path.name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode())
    identity = digest.hexdigest()[:16]
    (into / "id").write_text(identity, encoding="utf-8")
    return identity


def requirements(code_dir: Path | None, wheel: str) -> list[str]:
    """Return the requirements of the code's `pyproject.toml`, ours replaced by the wheel with its extras."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    extras: set[str] = set()
    others: list[str] = []
    path = None if code_dir is None else code_dir / "pyproject.toml"
    text = path.read_text(encoding="utf-8") if path is not None and path.is_file() else ""
    for line in map(str, (tomllib.loads(text).get("project") or {}).get("dependencies") or []):
        requirement = Requirement(line)
        if canonicalize_name(requirement.name) == DISTRIBUTION:
            extras |= set(requirement.extras)
        else:
            others.append(line)
    # What drives the trials is no part of them.
    inside = sorted(extras - {"harbor"})
    return [f"./{wheel}" + (f"[{','.join(inside)}]" if inside else ""), *others]


def patch_dockerfile(text: str) -> str:
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
