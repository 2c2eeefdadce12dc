"""How an entrypoint is started, decided from its text; and what the host finds in a module."""

from __future__ import annotations

from pathlib import Path

import pytest

from osmosis.base.installation import Wheel
from osmosis.engine.loader import load_module
from osmosis.errors import LoadError
from osmosis.jobs.context import JobFailed
from osmosis.jobs.prepare.entrypoints import build_command, classify_entrypoint
from osmosis.jobs.prepare.environment import Environment
from osmosis.jobs.server.serve_entrypoint import make_app

WORKFLOW = """
from osmosis.sdk.workflow import AgentWorkflow
from osmosis.sdk.workflow import Grader
class Answer(AgentWorkflow):
    async def run(self, ctx):
        return list(ctx.prompt)
class Judge(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0)
"""
OWN_PORT = """
app = create_rollout_server(backend)
if __name__ == "__main__":
    uvicorn.run(app, port={port})
"""


@pytest.mark.parametrize(
    ("text", "kind", "app"),
    [
        (OWN_PORT.format(port='int(os.environ["_OSMOSIS_ROLLOUT_PORT"])'), "script", "app"),
        (OWN_PORT.format(port='os.getenv("ROLLOUT_PORT", "8000")'), "script", "app"),
        (OWN_PORT.format(port="9000"), "module", "app"),
        ('if __name__ == "__main__":\n    start()\n', "script", None),
        ("from mine import serve\nserve()\n", "script", None),
        (WORKFLOW, "module", None),
        ("class Mine(pkg.AgentWorkflow[Config]): ...\n", "module", None),
        ("class Mine(RolloutAgentLoop): ...\nif __name__ == '__main__':\n    try_it()\n", "module", None),
        ("from mine import Workflow, Judge\n", "module", None),
        ("def broken(:\n", "script", None),
    ],
)
def test_script_or_module(text: str, kind: str, app: str | None) -> None:
    seen = classify_entrypoint(text)
    assert (seen.kind, seen.app) == (kind, app)


def test_the_command(tmp_path: Path) -> None:
    wheel = Wheel(Path("w.whl"), "1.0.0+abc", "abc")
    file = tmp_path / "pkg" / "main.py"
    ours = Environment(Path("/env"), {"osmosis-ai": "1.0.0+abc"}, "3.11.7", Path("/usr/bin/python3"))
    theirs = Environment(Path("/env"), {"osmosis-ai": "0.3.8"}, "3.12.1", Path("/usr/bin/python3"))
    script, module, app = (
        classify_entrypoint("print(1)\nif __name__: ..."),
        classify_entrypoint(WORKFLOW),
        classify_entrypoint("app = FastAPI()"),
    )
    assert build_command(script, file, tmp_path, theirs, wheel) == ["/env/bin/python", "pkg/main.py"]
    assert build_command(module, file, tmp_path, ours, wheel)[1:] == [
        "-m",
        "osmosis.jobs.server.serve_entrypoint",
        "pkg/main.py",
    ]
    assert "'pkg.main:app'" in build_command(app, file, tmp_path, theirs, wheel)[2]
    with pytest.raises(JobFailed, match=r"has osmosis-ai 0\.3\.8, which cannot serve it for you"):
        build_command(module, file, tmp_path, theirs, wheel)


def module(tmp_path: Path, text: str) -> Path:
    (tmp_path / "main.py").write_text(text)
    return tmp_path


def test_the_host_serves_a_workflow_with_its_grader(tmp_path: Path) -> None:
    app = make_app(load_module("main.py", module(tmp_path, WORKFLOW)))
    assert {"/rollout", "/health"} <= set(app.openapi()["paths"])


def test_the_host_takes_the_app_that_is_there(tmp_path: Path) -> None:
    text = "from fastapi import FastAPI\nadmin = FastAPI()\napp = FastAPI(title='mine')\n"
    assert make_app(load_module("main.py", module(tmp_path, text))).title == "mine"


def test_the_host_refuses_to_guess(tmp_path: Path) -> None:
    other = "class Second(Answer):\n    pass\n"
    with pytest.raises(LoadError, match="more than one workflow: Answer, Second"):
        make_app(load_module("main.py", module(tmp_path, WORKFLOW + other)))


def test_the_host_says_what_it_could_serve(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="defines nothing that can be served") as caught:
        make_app(load_module("main.py", module(tmp_path, "X = 1\n")))
    assert "_OSMOSIS_ROLLOUT_PORT" in str(caught.value.hint)
