"""`python -m osmosis.training.trainer PLAN SOCKET`: serves the connection at once, loads, trains, and ends.

Several data-parallel processes are started by torch's own launcher, which this process becomes; rank 0 serves. A
terminated trainer saves a checkpoint first; one whose job is gone ends at once, since nobody would read its events.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError as BadShape

from osmosis.base.stop_signals import on_stop
from osmosis.training.link import Done, Failed, TrainerPlan

from .service import TrainerService
from .training_failed import TrainingFailed, failed_event

USAGE = "usage: python -m osmosis.training.trainer PLAN SOCKET"
QUIET = {
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "HF_HUB_OFFLINE": "1",  # models come from folders; nothing leaves the machine
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_WAIT_POLICY": "PASSIVE",
}
PARENT_EVERY_S = 1.0
ENGINES = {"trl": ".running", "tinker": ".tinker_engine"}
EXTRAS = {"trl": "train", "tinker": "tinker"}


class Engine(Protocol):
    """A module that trains."""

    def run(self, plan: TrainerPlan, service: TrainerService | None) -> Done: ...


def main(arguments: list[str]) -> int:
    """0 after a `done` event, 1 after a `failed` one, 2 for a plan that cannot be read."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    for name in ("transformers", "ContinuousBatchingLogger"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # It warns of every sample without a reward, which is what a failed rollout is.
    logging.getLogger("trl").setLevel(logging.ERROR)
    if len(arguments) != 2:
        print(USAGE, file=sys.stderr)  # noqa: T201 - a command
        return 2
    try:
        plan = TrainerPlan.model_validate_json(Path(arguments[0]).read_bytes())
    except (OSError, BadShape) as error:
        print(f"{arguments[0]}: {error}", file=sys.stderr)  # noqa: T201 - a command
        return 2
    # Told to us by libraries about their next major versions, which are not installed here.
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if plan.processes > 1 and "WORLD_SIZE" not in os.environ:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(plan.processes)]
        os.execv(sys.executable, [sys.executable, *launcher, "-m", str(__package__), *arguments])
    if int(os.environ.get("RANK", "0")):
        return follow(plan)
    with TrainerService(plan.run, Path(arguments[1])) as service:
        on_stop(service.request_stop, signals=(signal.SIGTERM,))
        threading.Thread(target=end_without, args=(os.getppid(),), name="parent", daemon=True).start()
        last = train(plan, service)
        service.finish(last)
    return 0 if isinstance(last, Done) else 1


def train(plan: TrainerPlan, service: TrainerService) -> Done | Failed:
    """The last event of the run."""
    try:
        done: Done = engine_of(plan).run(plan, service)
    except Exception as error:  # the border: whatever it is becomes the run's last event
        logging.getLogger("osmosis.trainer").exception("training failed")
        return failed_event(error, service.health.step)
    return done


def follow(plan: TrainerPlan) -> int:
    """A rank other than the first."""
    engine_of(plan).run(plan, None)
    return 0


def engine_of(plan: TrainerPlan) -> Engine:
    """Loaded late: torch takes seconds to import, and the job asks for our health meanwhile."""
    try:
        engine: Engine = importlib.import_module(ENGINES[plan.engine], __package__)
    except ModuleNotFoundError as error:
        raise TrainingFailed(
            f"engine {plan.engine} needs {error.name}, which the trainer's environment does not have",
            kind="engine",
            hint=f"install the extra `{EXTRAS[plan.engine]}` there",
        ) from error
    return engine


def end_without(parent: int) -> None:
    """Ends this process when that one is no longer its parent."""
    while os.getppid() == parent:
        time.sleep(PARENT_EVERY_S)
    os._exit(3)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # A generation loop that hangs is a thread that nothing can end, and would keep the process.
    os._exit(code)
