"""A container engine for tests: a program `podman` that records what it is told and runs commands without a container.

It keeps to the few commands that `osmosis.sandbox.container` gives; images are the names it was made with.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

_PROGRAM = """#!{python}
import json, os, pathlib, re, signal, subprocess, sys
home = pathlib.Path({home!r})
words = sys.argv[1:]
with (home / "told.jsonl").open("a") as file:
    file.write(json.dumps(words) + "\\n")
containers = home / "containers"
containers.mkdir(exist_ok=True)
if words[0] == "ps":
    print("\\n".join(path.name for path in containers.iterdir()) if "--all" in words else "")
elif words[0] == "image":
    sys.exit(0 if words[-1] in {images!r} else 125)
elif words[0] == "inspect":
    if not (containers / words[-1]).exists():
        sys.exit(125)
    labels = json.loads((containers / words[-1]).read_text())["label"]
    print(labels.partition("=")[2] if "Labels" in words[2] else "false exited")
elif words[0] == "kill":
    found = json.loads((containers / words[-1]).read_text())
    os.killpg(found["pid"], signal.SIGKILL)
elif words[0] == "rm":
    (containers / words[-1]).unlink(missing_ok=True)
elif words[0] == "run":
    options, position = {{}}, 1
    while words[position].startswith("--"):
        if words[position] in ("--interactive", "--read-only"):
            position += 1
            continue
        options[words[position][2:]] = words[position + 1]
        position += 2
    image, arguments = words[position], words[position + 1 :]
    source = re.search("source=([^,]+)", options["mount"])[1]
    given = pathlib.Path(options["env-file"]).read_text().splitlines()
    environ = {{"PATH": os.defpath, **dict(line.split("=", 1) for line in given)}}
    child = subprocess.Popen(
        [options["entrypoint"], *arguments], cwd=source, env=environ, start_new_session=True
    )
    (containers / options["name"]).write_text(json.dumps({{"pid": child.pid, "label": options["label"]}}))
    code = child.wait()
    sys.exit(code if code >= 0 else 128 - code)
"""


def fake_engine(folder: Path, images: Sequence[str] = ("busybox",)) -> Path:
    """Makes `folder/podman`; what it was told stands in `folder/told.jsonl`, a list of words a line."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "podman"
    program.write_text(_PROGRAM.format(python=sys.executable, home=str(folder), images=list(images)), encoding="utf-8")
    program.chmod(0o755)
    return program


def told(folder: Path) -> list[list[str]]:
    """Every command that the engine was given."""
    return [json.loads(line) for line in (folder / "told.jsonl").read_text(encoding="utf-8").splitlines()]
