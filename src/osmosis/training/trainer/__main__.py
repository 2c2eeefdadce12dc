"""`python -m osmosis.training.trainer PLAN SOCKET`. For several processes this one becomes torch's launcher. A
terminated trainer saves a checkpoint first; one whose job is gone ends at once."""

import importlib
import logging
import os
import signal
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from pydantic import ValidationError as BadShape

from osmosis.base.processes import die_with_parent, on_stop
from osmosis.records.base import Record
from osmosis.training.protocol.messages import Done, Failed
from osmosis.training.protocol.plans import TrainerPlan
from osmosis.training.trainer.service import TrainerService, TrainingFailed, failed_event

USAGE = "usage: python -m osmosis.training.trainer PLAN SOCKET"
QUIET = {
    "HF_HUB_OFFLINE": "1",  # models come from folders; nothing leaves the machine
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_WAIT_POLICY": "PASSIVE",
}
ENGINES = {"local": ".run", "tinker": ".tinker_engine"}
EXTRAS = {"local": "train", "tinker": "tinker"}


PlanRecord = TypeVar("PlanRecord", bound=Record)


def main(arguments: list[str]) -> int:
    """Return 0 after a `done` event, 1 after a `failed` one, 2 for a plan that cannot be read."""
    plan = read_plan(TrainerPlan, arguments, 2, USAGE)
    if plan is None:
        return 2
    die_with_parent()  # also the launcher: on Linux that outlives exec
    if plan.processes > 1 and "WORLD_SIZE" not in os.environ:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(plan.processes)]
        os.execv(sys.executable, [sys.executable, *launcher, "-m", str(__package__), *arguments])
    if int(os.environ.get("RANK", "0")):
        load_engine(plan).run(plan, None)
        return 0
    with TrainerService(plan.run, Path(arguments[1])) as service:
        on_stop(service.request_stop, signals=(signal.SIGTERM,))
        last = train(plan, service)
        service.finish(last)
    return 0 if isinstance(last, Done) else 1


def read_plan(kind: type[PlanRecord], arguments: list[str], count: int, usage: str) -> PlanRecord | None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    for name in ("transformers", "ContinuousBatchingLogger"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # Told to us by libraries about their next major versions, which are not installed here.
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    problem = usage
    if len(arguments) == count:
        try:
            return kind.model_validate_json(Path(arguments[0]).read_bytes())
        except (OSError, BadShape) as error:
            problem = f"{arguments[0]}: {error}"
    print(problem, file=sys.stderr)  # noqa: T201 - a command
    return None


def train(plan: TrainerPlan, service: TrainerService) -> Done | Failed:
    try:
        done: Done = load_engine(plan).run(plan, service)
    except Exception as error:  # the border: whatever it is becomes the run's last event
        logging.getLogger("osmosis.trainer").exception("training failed")
        return failed_event(error, service.health.step)
    return done


def load_engine(plan: TrainerPlan) -> ModuleType:
    """Import the engine late: torch takes seconds to import, and the job asks for our health meanwhile."""
    try:
        return importlib.import_module(ENGINES[plan.engine], __package__)
    except ModuleNotFoundError as error:
        message = f"engine {plan.engine} needs {error.name}, which the trainer's environment does not have"
        hint = f"install the extra `{EXTRAS[plan.engine]}` there"
        raise TrainingFailed(message, kind="engine", hint=hint) from error


def exit_now(code: int) -> None:
    """Exit whatever threads are left: a generation loop that hangs is one that nothing can end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    exit_now(main(sys.argv[1:]))
