"""A job that runs nothing: `python tests/support/run.py fake_job --run URL` speaks the job API like a real one.

It asks what to do, makes a rollout per row and attempt (reward 1.0 for even rows, else 0.0), keeps a journal in the
job folder and reports each. How it misbehaves is said in `[env]` of the run's config: `FAKE_JOB` is a comma-separated
list of `crash-once:N` (dies after N rollouts, the first time), `crash` (dies at once, always), `mute` (never reports),
`wait:N` (waits after N rollouts until told to stop or until `<job folder>/go` exists), `chatty` (says line after line
while it waits), `fail` (reports failed), `environ` (logs the names in its environment, and of its secrets), `orderly`
(told to end, it reports that it was), `grow` (takes a lot of memory).
"""

import json
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from osmosis.base.jsonable import JsonObject
from osmosis.records.base import Record
from osmosis.records.run.job import JobEntry, JobResult, JobSpec, LogLine, Progress, RolloutBatch, Stage
from osmosis.records.run.report import Report, ScoreReport
from osmosis.records.run.rollout import Category, Failure, Phase, Rollout, RolloutStatus, Score
from osmosis.records.run.status import RunStatus

RETRY_S = 0.05
PATIENCE_S = 60.0
GROWTH = 1_500_000_000


TERMINATED = threading.Event()


class StopAsked(Exception):
    """The platform asked for it."""


class FakeJob:
    """One life of the job."""

    def __init__(self, url: str, entry: JobEntry) -> None:
        self.folder = Path(os.path.expandvars(entry.work_dir) if entry.ticket else entry.work_dir)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.http = httpx.Client(base_url=url, trust_env=False, verify=entry.ca_file or True)
        lease = entry.lease or self.lease_for(entry.ticket, url)
        self.http.headers["Authorization"] = f"Bearer {lease}"
        self.spec = JobSpec.model_validate(self.request("GET", "spec", None))
        taker = {"taker": secrets.token_urlsafe(32)}
        self.secrets: dict[str, str] = self.request("POST", "secrets", taker)["values"]
        self.modes = dict(_modes(self.spec.submitted.env.get("FAKE_JOB", "")))
        self.journal = self.folder / "fake-journal.jsonl"

    def lease_for(self, ticket: str, url: str) -> str:
        """What a job does that a scheduler started."""
        jobs, _, run_id = url.rpartition("/")
        claim = {"run_id": run_id, "taker": secrets.token_urlsafe(32)}
        answer = self.http.post(f"{jobs}/claim", json=claim, headers={"Authorization": f"Bearer {ticket}"})
        if answer.status_code in (401, 409):
            print(f"fake job: its ticket was refused: {answer.json()['message']}")  # noqa: T201 - its last words
            sys.exit(5)
        answer.raise_for_status()
        return str(answer.json()["lease"])

    def run(self) -> int:
        if "crash" in self.modes:
            print("fake job: crashing as told")  # noqa: T201 - what a job prints is its last words
            return 7
        if "mute" in self.modes:
            time.sleep(PATIENCE_S)
            return 8
        if "grow" in self.modes:
            hoard = b"x" * GROWTH
            time.sleep(PATIENCE_S)
            return len(hoard)
        if "environ" in self.modes:
            self.log("environ: " + " ".join(sorted(os.environ)))
            self.log("secrets: " + " ".join(sorted(self.secrets)))
        if "fail" in self.modes:
            failure = Failure(phase=Phase.SETUP, category=Category.UNKNOWN, message="failed as told", fix="do not tell")
            self.post("finish", JobResult(status=RunStatus.FAILED, failure=failure))
            return 1
        try:
            if "orderly" in self.modes:
                signal.signal(signal.SIGTERM, _stopped)
                self.log("orderly: ready")  # whoever reads it may send the signal before this returns
            self.work()
        except StopAsked:
            self.post("finish", JobResult(status=RunStatus.STOPPED, report=self.report()))
            return 0
        self.post("finish", JobResult(status=RunStatus.FINISHED, report=self.report()))
        return 0

    def work(self) -> None:
        done = {rollout.key for rollout in self.rollouts()}
        self.post("rollouts", RolloutBatch(rollouts=list(self.rollouts())))
        stored = {tuple(key) for key in self.request("GET", "rollouts", None)["keys"]}
        attempts = getattr(getattr(self.spec.config, "evaluation", None), "n", 1)
        for row in self.spec.own_rows:
            for attempt in range(attempts):
                rollout = _rollout(row, attempt)
                if rollout.key in done or rollout.key in stored:
                    continue
                self.heartbeat()
                with self.journal.open("ab") as file:
                    file.write(rollout.to_line())
                self.post("rollouts", RolloutBatch(rollouts=[rollout]))
                self.misbehave(len(list(self.rollouts())))
        self.heartbeat()

    def misbehave(self, finished: int) -> None:
        marker = self.folder / "crashed"
        if str(finished) == self.modes.get("crash-once") and not marker.exists():
            marker.touch()
            os._exit(9)
        said = 0
        waits = self.modes.get("wait")
        # A later life of one that was stopped while it waited has more than these, and waits as well.
        is_waiting = str(finished) == waits or ("orderly" in self.modes and waits is not None and finished > int(waits))
        while is_waiting and not (self.folder / "go").exists():
            self.heartbeat()
            if "chatty" in self.modes:
                self.log(f"line {said}")
                said += 1
            time.sleep(RETRY_S)

    def rollouts(self) -> Iterator[Rollout]:
        if self.journal.exists():
            for line in self.journal.read_bytes().splitlines():
                yield Rollout.model_validate_json(line)

    def heartbeat(self) -> None:
        progress = Progress(
            stage=Stage.ROLLOUTS,
            completed=len(list(self.rollouts())),
            total=len(self.spec.own_rows),
            report=self.report(),
        )
        if TERMINATED.is_set() or self.post("heartbeat", progress)["stop"]:
            raise StopAsked

    def log(self, message: str) -> None:
        line = LogLine(step="fake", message=message)
        self.request("POST", "logs", {"lines": [json.loads(line.model_dump_json())]})

    def report(self) -> Report:
        rewards = [rollout.value("reward") or 0.0 for rollout in self.rollouts()]
        passed = sum(reward >= 1.0 for reward in rewards)
        mean = sum(rewards) / len(rewards) if rewards else None
        score = ScoreReport(
            name="reward",
            mean=mean,
            mean_scored=mean,
            std=None,
            min=min(rewards, default=None),
            max=max(rewards, default=None),
            median=None,
            passed=passed,
            scored=len(rewards),
            failed=0,
            pass_rate=passed / len(rewards) if rewards else None,
        )
        return Report(
            rows=len(self.spec.own_rows),
            attempts=1,
            pass_threshold=1.0,
            total=len(self.spec.own_rows),
            completed=len(rewards),
            succeeded=len(rewards),
            failed=0,
            skipped=0,
            coverage=len(rewards) / max(1, len(self.spec.own_rows)),
            scores=[score],
        )

    def post(self, path: str, body: Record) -> JsonObject:
        return self.request("POST", path, json.loads(body.model_dump_json()))

    def request(self, method: str, path: str, body: object) -> JsonObject:
        """Patient while nobody answers; a lost lease ends the job."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                answer = self.http.request(method, f"/{path}", json=body)
                if answer.status_code >= 500:
                    raise httpx.TransportError(f"HTTP {answer.status_code}")
            except httpx.TransportError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_S)
                continue
            if answer.status_code == 409:
                sys.exit(5)
            answer.raise_for_status()
            found: JsonObject = answer.json()
            return found


def _stopped(*_: object) -> None:
    """Remember it only: an exception in the middle of a request would leave its connection half used."""
    TERMINATED.set()


def _modes(text: str) -> Iterator[tuple[str, str]]:
    for part in filter(None, text.split(",")):
        name, _, value = part.partition(":")
        yield name, value


def _rollout(row: int, attempt: int) -> Rollout:
    reward = 1.0 if row % 2 == 0 else 0.0
    return Rollout(
        rollout_id=f"fake-{row}-{attempt}",
        row_index=row,
        row_key=f"row-{row}",
        attempt=attempt,
        status=RolloutStatus.SUCCESS,
        messages=[{"role": "user", "content": f"row {row}"}, {"role": "assistant", "content": "done"}],
        scores={"reward": Score(name="reward", value=reward)},
    )


if __name__ == "__main__":
    sys.exit(FakeJob(sys.argv[2], JobEntry.model_validate_json(sys.stdin.buffer.read())).run())
