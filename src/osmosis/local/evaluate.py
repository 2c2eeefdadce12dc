"""`osmosis.evaluate`: an agent over the rows of a dataset, scored, journaled, resumable, from Python.

The same run as `osmosis eval`, with the same journal and report. Turns what Python code holds (objects, rows in memory)
into the plan's names and files; everything after is shared. Asks nothing unless `confirm` answers, prints nothing.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import orjson
from pydantic import ValidationError as PydanticError
from typing_extensions import TypedDict, Unpack

from osmosis.base.files import replacing
from osmosis.base.json_types import JsonObject
from osmosis.engine.loader import name_of
from osmosis.errors import DatasetError, UsageError, ValidationError
from osmosis.records.dataset import Row
from osmosis.records.plan import Budget, EvalPlan, ModelSpec, Retry, RolloutLimits, Selection, Timeouts
from osmosis.records.reducer import ReducerName
from osmosis.records.sandbox import SandboxChoice
from osmosis.sdk.calls import alone

from .prepare import prepare
from .prepared import Confirm, Watcher
from .request import Request, ScoreFunction, check_classes, check_name, generated_name, parse_model, runs_folder
from .run import Run
from .workers import worker_count

if TYPE_CHECKING:
    from osmosis.sdk.agent_loop import RolloutAgentLoop
    from osmosis.sdk.backend import LocalBackend
    from osmosis.sdk.grader import GraderClass
    from osmosis.sdk.workflow import WorkflowClass

T = TypeVar("T")

_INTERRUPTIBLE_S = 0.5

AgentLike: TypeAlias = "str | RolloutAgentLoop | type[RolloutAgentLoop] | WorkflowClass | LocalBackend"
DatasetLike: TypeAlias = "str | os.PathLike[str] | Iterable[Mapping[str, Any] | Row]"


class PlanFields(TypedDict, total=False):
    """The fields of `EvalPlan` that say how a run goes; their meaning and defaults are described there."""

    name: str
    selection: Selection
    attempts: int
    concurrency: int
    adaptive: bool
    score_bounds: dict[str, tuple[float, float]]
    pass_threshold: float
    ks: list[int] | None
    reducers: list[ReducerName]
    group_by: list[str]
    max_turns: int
    max_tokens_total: int | None
    timeouts: Timeouts
    retry: Retry
    budget: Budget
    limits: RolloutLimits
    sandbox: SandboxChoice
    cache: bool
    skip_bad_rows: bool
    require_ground_truth: bool


class EvaluateOptions(PlanFields, total=False):
    """Keywords of `evaluate`: the plan's, and what surrounds a run on this machine."""

    grader: str | GraderClass
    """Of a workflow; default: the one beside it."""
    base_url: str
    """OpenAI-compatible endpoint of `model`, up to `/v1`."""
    api_key: str
    """Never stored; default: the provider's usual variable."""
    api_key_env: str
    """Environment variable with the API key."""
    server_key_env: str
    """Variable that holds the key of a rollout server (`agent="server:http://..."`)."""
    secrets: Sequence[str]
    """Variables whose values are redacted in everything that is written."""
    baselines: Sequence[str | ModelSpec]
    """More models to run on the same rows, each in its own run: `Run.baselines`."""
    pilot: int
    """Run this many rollouts first, forecast the rest, then ask `confirm`."""
    workers: int
    """Processes that run and score, for code that burns CPU; agent and score functions have to have names."""
    retry_failed: Sequence[str]
    """Retry stored failures of these categories or phases; all when empty."""
    accept_changes: bool
    """Rerun or regrade whatever no longer fits the current inputs, instead of raising `Conflict`."""
    confirm: Confirm
    """Answers questions; `accept_changes=True` answers yes in advance."""
    watcher: Watcher
    """Is told what happens during the run."""
    base_dir: str | os.PathLike[str]
    """Where `module:name` and relative paths are looked for; default: the current folder."""
    runs_dir: str | os.PathLike[str]
    """Where the run's folder is made; default: `.osmosis/runs` of the workspace, else of `base_dir`."""


def evaluate(
    agent: AgentLike,
    dataset: DatasetLike,
    *,
    model: str | ModelSpec,
    scorers: Sequence[str | ScoreFunction] | str | ScoreFunction = (),
    **options: Unpack[EvaluateOptions],
) -> Run:
    """Runs an agent on every selected row, scores what comes back, and returns the `Run` when it is over.

        `agent` is an agent loop, a workflow, or a name: `"module:agent"`, `"mcp:./folder"`, `"server:http://..."`.
        `dataset` is a file, or rows: mappings with `user_prompt` (see docs/eval.md). `scorers` are functions,
        `"module:function"` or `"rubric:file.yaml#id"`. `model` is a name as on the command line, or a `ModelSpec`.

    An existing `name` is resumed where it stopped. Works inside a running event loop too (a notebook), which it blocks;
        in code of your own that is async, await `evaluate_async`. Raises OsmosisError for what concerns the whole run,
        before anything is spent where that can be; a rollout or score that fails is data in the run.
    """
    started = _Call(agent, dataset, model, scorers, options)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(alone(started.go()))
    return _in_thread(started.go)


async def evaluate_async(
    agent: AgentLike,
    dataset: DatasetLike,
    *,
    model: str | ModelSpec,
    scorers: Sequence[str | ScoreFunction] | str | ScoreFunction = (),
    **options: Unpack[EvaluateOptions],
) -> Run:
    """`evaluate`, on the running event loop. Cancelling interrupts the run; the same `name` resumes it.

    Loading and checking, which read the dataset once, happen before the loop gets its first turn.
    """
    return await _Call(agent, dataset, model, scorers, options).go()


class _Call:
    """One call of `evaluate`, from keywords to a request."""

    def __init__(
        self,
        agent: AgentLike,
        dataset: DatasetLike,
        model: str | ModelSpec,
        scorers: Sequence[str | ScoreFunction] | str | ScoreFunction,
        options: EvaluateOptions,
    ) -> None:
        unknown = sorted(set(options) - set(EvaluateOptions.__annotations__))
        if unknown:
            raise TypeError(f"evaluate() got an unexpected keyword argument {unknown[0]!r}")
        self.options = options
        self.base_dir = Path(options.get("base_dir", ".")).expanduser().absolute()
        runs = options.get("runs_dir")
        self.runs_dir = Path(runs).expanduser().absolute() if runs is not None else runs_folder(self.base_dir)
        self.accepted: Confirm | None = (lambda _: True) if options.get("accept_changes") else options.get("confirm")
        if options.get("pilot") is not None and self.accepted is None:
            raise UsageError(
                "a pilot run needs a confirmation before it continues", hint="pass confirm=... or accept_changes=True"
            )
        check_classes(options.get("retry_failed") or ())
        self.request = self._request(agent, dataset, model, scorers)

    async def go(self) -> Run:
        # Not in a thread: it imports the user's code, which other code of this process must not see half done.
        prepared = prepare(self.request)
        try:
            prepared.agree(self.accepted)
            return await prepared.run(self.options.get("watcher"), confirm=self.accepted)
        finally:
            prepared.close()

    def _request(
        self,
        agent: AgentLike,
        dataset: DatasetLike,
        model: str | ModelSpec,
        scorers: Sequence[str | ScoreFunction] | str | ScoreFunction,
    ) -> Request:
        options = self.options
        agent_name, found = (agent, None) if isinstance(agent, str) else _named(agent)
        names, functions = _scorers([scorers] if isinstance(scorers, str) or callable(scorers) else scorers)
        stem = str(dataset) if isinstance(dataset, (str, os.PathLike)) else "rows"
        run_name = check_name(options["name"] if "name" in options else generated_name(agent_name, stem))
        path = stem if isinstance(dataset, (str, os.PathLike)) else str(_write(dataset, self.runs_dir / run_name))
        fields = {key: options[key] for key in PlanFields.__annotations__ if key in options}  # type: ignore[literal-required]  # its own keys
        named = {"name": run_name, "agent": agent_name, "dataset": path, "score_fns": names}
        plan = self._plan({**fields, **named}, model)
        return Request(
            plan,
            self.base_dir,
            self.runs_dir,
            dict(os.environ),
            agent=found,
            functions=functions,
            grader=options.get("grader"),
            api_key=options.get("api_key"),
            server_key_env=options.get("server_key_env"),
            secrets=options.get("secrets", ()),
            retry_failed=options.get("retry_failed"),
            baselines=[parse_model(m) if isinstance(m, str) else m for m in options.get("baselines", ())],
            pilot=options.get("pilot"),
            workers=worker_count(str(options.get("workers", 1))),
        )

    def _plan(self, fields: JsonObject, model: str | ModelSpec) -> EvalPlan:
        try:
            return EvalPlan(**fields, model=self._model(model))
        except PydanticError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the plan"
            raise ValidationError(f"{where}: {first['msg']}, got {first['input']!r}") from error

    def _model(self, model: str | ModelSpec) -> ModelSpec:
        base_url, api_key_env = self.options.get("base_url"), self.options.get("api_key_env")
        if isinstance(model, str):
            return parse_model(model, base_url=base_url, api_key_env=api_key_env)
        if base_url is not None or api_key_env is not None:
            raise UsageError(
                "a ModelSpec names its own endpoint and key", hint="set base_url and api_key_env on the ModelSpec"
            )
        return model


def _named(found: T) -> tuple[str, T | None]:
    """How a plan names an object, and the object where that name alone does not find it again."""
    name, findable = name_of(found)
    return name, None if findable else found


def _write(rows: Iterable[Mapping[str, object] | Row], folder: Path) -> Path:
    """Rows in memory as a file in the run's folder, named by their content: a resume and a regrade read it again."""
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    draft = folder / "rows.jsonl"
    with replacing(draft) as out:
        for index, row in enumerate(rows):
            data = row.data if isinstance(row, Row) else row
            try:
                line = orjson.dumps(dict(data)) + b"\n"
            except (TypeError, ValueError) as error:
                raise DatasetError(f"row {index} cannot be written as JSON: {error}") from error
            digest.update(line)
            out.write(line)
    return draft.replace(folder / f"rows-{digest.hexdigest()[:12]}.jsonl")


def _in_thread(go: Callable[[], Coroutine[None, None, T]]) -> T:
    """Runs `go()` on an event loop of its own in another thread; an interrupt here cancels it there."""
    loop = asyncio.new_event_loop()
    done: Future[T] = Future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            done.set_result(loop.run_until_complete(task))
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for it
            done.set_exception(error)
        finally:
            loop.close()

    task = context.run(loop.create_task, alone(go()))
    thread = threading.Thread(target=context.run, args=(work,), name="evaluate", daemon=True)
    try:
        thread.start()
        while not wait([done], timeout=_INTERRUPTIBLE_S).done:
            pass  # a signal is seen between two waits at the latest, whichever thread it reached
        return done.result()
    except KeyboardInterrupt:
        with suppress(RuntimeError):  # it came to its end just now
            loop.call_soon_threadsafe(task.cancel)
        wait([done])
        raise


def _scorers(given: Iterable[str | ScoreFunction]) -> tuple[list[str], dict[str, ScoreFunction]]:
    """The names of the scores, and the functions among them that are here already."""
    names: list[str] = []
    functions: dict[str, ScoreFunction] = {}
    for scorer in given:
        name, function = (scorer, None) if isinstance(scorer, str) else _named(scorer)
        names.append(name)
        if function is not None:
            functions[name] = function
    return names, functions
