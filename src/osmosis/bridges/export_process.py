"""Export a run in a process of its own, so that a tool that hangs or crashes costs the run nothing. `python -m
osmosis.bridges.export_process TOOL` takes an `ExportedRun` on stdin and answers on stdout how far it came."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE

from osmosis.base.installation import extra_command
from osmosis.base.processes import kill_group
from osmosis.bridges.export_stream import EvaluationStream, ExportedRun, Exporter, Records, TrainingStream
from osmosis.errors import OsmosisError
from osmosis.records.config.export import CURVES, Export, ExportTarget

POLL_S, RETRY_S, LAST_TRIES, LAST_WAIT_S = 0.5, 2.0, 3, 60.0
_LIBRARIES = {"mlflow": "mlflow", "tensorboard": "tensorboardX", "trackio": "trackio", "wandb": "wandb"}


class Exports:
    def __init__(self, options: Export | None) -> None:
        """Raise OsmosisError for the library of a tool that is missing, with the command that installs it."""
        self._targets = options.list_targets() if options else []
        self._processes: list[tuple[ExportTarget, subprocess.Popen[str]]] = []
        for target in self._targets:
            name = _LIBRARIES.get(target.tool, "opentelemetry.exporter.otlp.proto.http")
            try:
                library = importlib.util.find_spec(name)
            except ModuleNotFoundError:
                library = None
            if library is None:
                hint = extra_command(target.tool if target.tool in CURVES else "otlp")
                raise OsmosisError(f"what {target.tool} needs is not installed", hint=hint)

    def start(self, run: ExportedRun, environ: Callable[[str], Mapping[str, str]], cwd: Path) -> list[int]:
        """Start them with the variables of each tool; return their process groups. The run's folder is there."""
        for target in self._targets:
            command = [sys.executable, "-m", __name__, target.tool]
            start = partial(subprocess.Popen, command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=True)
            process = start(env=environ(target.tool), cwd=cwd, start_new_session=True)  # Ctrl-C stops the run alone
            self._processes.append((target, process))
            with suppress(OSError):  # it is gone: `close` says so
                print(run.model_copy(update=target._asdict()).model_dump_json(), file=process.stdin, flush=True)
        return [process.pid for _, process in self._processes]

    def end(self) -> None:
        for _, process in self._processes:
            with suppress(OSError, AttributeError):
                process.stdin.close()  # type: ignore[union-attr]
            process.stdin = None

    def close(self, patience_s: float = LAST_WAIT_S) -> Iterator[tuple[ExportTarget, str]]:
        """Wait for what is still to be sent, at most so long; yield what was not, in words."""
        self.end()
        end = time.monotonic() + patience_s
        for target, process in self._processes:
            try:
                problem = json.loads(process.communicate(timeout=max(0.1, end - time.monotonic()))[0])
            except subprocess.TimeoutExpired:
                kill_group(process.pid)
                problem = f"it took longer than {patience_s:.0f} s"
            except ValueError:
                problem = f"its process ended with {process.returncode}"
            if problem:
                yield target, f"{target.tool}: {problem}"


def send_all(tool: str, run: ExportedRun, over: threading.Event) -> str | None:
    stream = EvaluationStream(run) if run.kind == "eval" else TrainingStream(run)
    exporter: Exporter | None = None
    records, sent, failures, reason = Records([], []), 0, 0, ""
    while failures < LAST_TRIES:
        is_last = over.is_set()
        try:
            if exporter is None:
                module = importlib.import_module(f"osmosis.bridges.{'curves' if tool in CURVES else 'otlp'}")
                make: type[Exporter] = getattr(module, f"{tool.capitalize()}Exporter")
                exporter = make(run)
            records = records if records.points else stream.read(is_last=is_last)
            if records.points:
                exporter.send(records)
                sent, failures, records = sent + len(records.points), 0, Records([], [])
            elif is_last:
                exporter.finish(*stream.summarize())
                return None
            else:
                over.wait(POLL_S)
        except Exception as error:  # noqa: BLE001 - border to a foreign library: whatever it raises is data
            failures, reason = failures + is_last, f"{type(error).__name__}: {error}"[:500]
            time.sleep(POLL_S if over.wait(RETRY_S) else 0)
    left = len(records.points)
    while more := stream.read(is_last=True).points:
        left += len(more)
    unit = "rollouts" if run.kind == "eval" else "steps"
    return f"{f'{left} of {sent + left} {unit}' if left else 'the last figures'} were not sent: {reason}"


if __name__ == "__main__":
    answer, is_over = os.fdopen(os.dup(1), "w"), threading.Event()
    os.dup2(2, 1)  # libraries print what they like
    request = ExportedRun.model_validate_json(sys.stdin.readline())
    threading.Thread(target=lambda: sys.stdin.read() or is_over.set(), daemon=True).start()  # type: ignore[func-returns-value]
    print(json.dumps(send_all(sys.argv[1], request, is_over)), file=answer, flush=True)
    os._exit(0)  # threads of a library may wait for ever
