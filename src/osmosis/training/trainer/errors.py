import traceback
from typing import Literal

from osmosis.errors import OsmosisError
from osmosis.training.protocol.messages import Failed

Kind = Literal["model", "memory", "data", "diverged", "engine", "bug"]
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory")
LESS_MEMORY = (
    "lower max_response_length or rollout_batch_size, raise gradient_accumulation, or set gradient_checkpointing = true"
)


class TrainingFailed(OsmosisError):
    """A known reason; `kind` is the category of the `failed` event, `hint` what to change."""

    def __init__(self, message: str, *, kind: Kind = "model", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind


def out_of_memory(error: BaseException | str) -> bool:
    return isinstance(error, MemoryError) or any(phrase in str(error).lower() for phrase in _OUT_OF_MEMORY)


def failed_event(error: BaseException, step: int) -> Failed:
    if isinstance(error, TrainingFailed):
        return Failed(category=error.kind, message=error.message, fix=error.hint, step=step)
    if out_of_memory(error):
        message = f"out of memory in step {step + 1}: {_first_line(error)}"
        return Failed(category="memory", message=message, fix=LESS_MEMORY, step=step)
    if isinstance(error, OsmosisError):
        return Failed(category="data", message=error.message, fix=error.hint, step=step)
    frames = "".join(traceback.format_exception(error))[-4000:]
    message = f"{type(error).__name__}: {_first_line(error)}"
    return Failed(category="bug", message=message, step=step, traceback=frames)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:500]
