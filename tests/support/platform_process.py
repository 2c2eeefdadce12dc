"""The platform as a process of its own, for tests: started, killed and started again over one data folder.

Jobs are `support.fake_job` unless another command is given. It speaks HTTP like any client.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from osmosis.base.git import Git
from osmosis.base.jsonable import JsonObject
from osmosis.platform.db import Database
from osmosis.serve.server_process import free_port

from . import RUN
from .command_line import login_environ

WITHIN_S = 60.0
FAKE_JOB = " ".join((*RUN, "fake_job"))


@cache
def _empty_database() -> bytes:
    """The file of a database with nothing but its tables, migrated once for all platforms of this process."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "platform.db"
        db = Database(f"sqlite:///{file}")
        db.migrate()
        db.close()  # the last connection writes all of it into the file
        return file.read_bytes()


def lay_database(data_dir: Path) -> None:
    """Where a data folder has no database, put an empty one with its tables: migrations are most of a first start."""
    ours = data_dir / "platform.db"
    if not ours.exists():
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        ours.write_bytes(_empty_database())
        ours.chmod(0o600)


class PlatformProcess:
    """`python -m osmosis.platform serve` over one data folder, startable again."""

    def __init__(self, data_dir: Path, *, environ: Mapping[str, str] | None = None, **options: str) -> None:
        """`options` are those of `serve`: `max_jobs="2"` is `--max-jobs 2`, an empty value is a bare flag."""
        self.data_dir = data_dir
        self.options = {"job_command": FAKE_JOB, **options}
        self.environ = dict(os.environ if environ is None else environ)
        self.port = free_port()
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", trust_env=False, timeout=20)
        self.process: subprocess.Popen[bytes] | None = None
        self.within: list[str] = []
        """The beginning of its command: what puts it into a network of its own."""

    def start(self) -> None:
        elsewhere = "database_url" in self.options or "OSMOSIS_DATABASE_URL" in self.environ
        if not (self.within or elsewhere):  # not from outside into a disk of its own
            lay_database(self.data_dir)
        options = []
        for key, value in self.options.items():
            options += [f"--{key.replace('_', '-')}", *([value] if value else [])]
        command = [sys.executable, "-m", "osmosis.platform", "serve", "--data-dir", str(self.data_dir)]
        self.process = subprocess.Popen(
            [*self.within, *command, "--port", str(self.port), *options],
            env=self.environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(self.answers, "the platform answers")

    def answers(self) -> bool:
        assert self.process.poll() is None, (self.data_dir / "logs" / "platform.log").read_text()
        try:
            return self.http.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def end(self) -> None:
        """At the end of a test: stopped in order, if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.terminate()

    def login(self) -> None:
        token = (self.data_dir / "bootstrap.token").read_text().strip()
        answer = self.http.post("/api/cli/bootstrap", json={}, headers={"Authorization": f"Bearer {token}"})
        self.http.headers["Authorization"] = f"Bearer {answer.json()['token']}"
        self.json("POST", "workspaces", json={"name": "demo"})
        self.http.headers["X-Osmosis-Workspace"] = "demo"

    @property
    def url(self) -> str:
        return str(self.http.base_url).rstrip("/")

    @property
    def token(self) -> str:
        return str(self.http.headers["authorization"]).partition(" ")[2]

    @property
    def login_environ(self) -> dict[str, str]:
        return login_environ(self.url, self.token)

    def json(self, method: str, path: str, **kwargs: Any) -> Any:
        answer = self.http.request(method, f"/api/cli/{path}", **kwargs)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    def prepare(
        self,
        folder: Path,
        *,
        files: Mapping[str, str] | None = None,
        rows: Sequence[JsonObject] | None = None,
        dataset: str = "sums",
    ) -> None:
        """A pushed rollout, of these files, and a dataset of these rows, else of 12."""
        url = self.json("GET", "workspaces")["workspaces"][0]["connected_repo"]["url"]
        for name, text in (files or {"main.py": "x = 1\n"}).items():
            file = folder / "rollouts" / "multiply" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        for args in (
            ["init", "-q", "-b", "main"],
            ["add", "-A"],
            ["-c", "user.name=T", "-c", "user.email=t@localhost", "commit", "-q", "-m", "first"],
            ["push", "-q", url.replace("://", f"://git:{self.token}@"), "main"],
        ):
            Git(folder).run(*args)
        lines = rows or [{"user_prompt": str(n), "ground_truth": str(n)} for n in range(12)]
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        body = {"file_name": dataset, "file_size": len(content), "extension": "jsonl"}
        created = self.json("POST", "datasets", json=body)
        assert self.http.put(created["upload"]["presigned_url"], content=content).status_code == 200
        self.json("POST", f"datasets/{created['id']}/complete", json={})
        until(lambda: self.json("GET", "rollouts")["rollouts"], "the push is synced")

    def submit(self, mode: str = "", **sections: Any) -> str:
        experiment = {"rollout": "multiply", "entrypoint": "main.py", "model_path": "offline/x", "dataset": "sums"}
        body = {"experiment_config": experiment, "evaluation_config": {"limit": 6}, **sections}
        if mode:
            body["env_config"] = {"FAKE_JOB": mode}
        return str(self.json("POST", "eval-runs", json=body)["name"])

    def run(self, name: str) -> JsonObject:
        return self.json("GET", f"eval-runs/{name}")["eval_run"]

    def reaches(self, name: str, status: str, *, within_s: float = WITHIN_S) -> JsonObject:
        def arrived() -> bool:
            now = str(self.run(name)["status"])
            assert now == status or now in ("pending", "running"), self.logs(name)
            return now == status

        until(arrived, f"run {name} is {status}", within_s)
        return self.json("GET", f"eval-runs/{name}")

    def rollouts(self, name: str) -> list[int]:
        return [row["row_index"] for row in self.json("GET", f"eval-runs/{name}/rollouts")["rollouts"]]

    def logs(self, name: str) -> str:
        return "\n".join(line["message"] for line in self.json("GET", f"eval-runs/{name}/logs?limit=200")["logs"])

    def folder(self, name: str) -> Path:
        return self.data_dir / "runs" / str(self.run(name)["id"])


def until(condition: Callable[[], object], what: str, within_s: float = WITHIN_S) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {within_s:g} s"
        time.sleep(0.05)
