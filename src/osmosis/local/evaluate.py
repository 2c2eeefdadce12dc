import asyncio
import contextvars
import dataclasses
import hashlib
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import orjson
from pydantic import ValidationError as PydanticError
from typing_extensions import TypedDict, Unpack

from osmosis.base.files import replacing
from osmosis.base.jsonable import JsonObject
from osmosis.engine.loader import name_of
from osmosis.errors import DatasetError, UsageError, ValidationError
from osmosis.local.prepare import prepare
from osmosis.local.run import Run
from osmosis.local.run_options import (
    Confirm,
    RunOptions,
    ScoreFunction,
    Watcher,
    check_classes,
    check_name,
    generated_name,
    parse_model,
    runs_folder,
    write_foreign_dataset,
)
from osmosis.local.workers import worker_count
from osmosis.records.run import plan as plans
from osmosis.records.run.rows import ReducerName, Row
from osmosis.records.sandbox import SandboxChoice
from osmosis.sdk.agent_loop import RolloutAgentLoop
from osmosis.sdk.backend import LocalBackend
from osmosis.sdk.foreign import is_foreign
from osmosis.sdk.user_code import run_main
from osmosis.sdk.workflow import GraderClass, WorkflowClass

T = TypeVar("T")

_INTERRUPTIBLE_S = 0.5

AgentLike: TypeAlias = "str | RolloutAgentLoop | type[RolloutAgentLoop] | WorkflowClass | LocalBackend"
DatasetLike: TypeAlias = "str | os.PathLike[str] | Iterable[Mapping[str, Any] | Row] | None"


class EvaluateOptions(TypedDict, total=False):
    """Keywords of `evaluate`: the fields of `EvalPlan` and `RunOptions` that a caller can set, and the model's."""

    name: str
    selection: plans.Selection
    attempts: int
    concurrency: int
    adaptive: bool
    score_bounds: dict[str, tuple[float, float]]
    pass_threshold: float
    ks: list[int] | None
    reducers: list[ReducerName]
    group_by: list[str]
    primary: str | None
    max_turns: int
    max_tokens_total: int | None
    timeouts: plans.Timeouts
    retry: plans.Retry
    budget: plans.Budget
    limits: plans.RolloutLimits
    sandbox: SandboxChoice
    program: plans.ProgramSpec
    cache: bool
    skip_bad_rows: bool
    require_ground_truth: bool
    grader: str | GraderClass  # grader of a workflow; default: the one beside it
    base_url: str  # OpenAI-compatible endpoint of `model`, up to `/v1`
    api_key: str  # never stored; default: the provider's usual variable
    api_key_env: str  # environment variable with the API key
    server_key_env: str  # variable that holds the key of a rollout server (`agent="server:http://..."`)
    secrets: Sequence[str]  # variables whose values are redacted in everything that is written
    baselines: Sequence[str | plans.ModelSpec]
    """More models to run on the same rows, each in its own run: `Run.baselines`."""
    pilot: int  # run this many rollouts first, forecast the rest, then ask `confirm`
    workers: int  # processes that run and score, for code that burns CPU; agent and score functions have to have names
    retry_failed: Sequence[str]  # retry stored failures of these categories or phases; all when empty
    accept_changes: bool  # rerun or regrade whatever no longer fits the current inputs, instead of raising `Conflict`
    confirm: Confirm  # answers questions; `accept_changes=True` answers yes in advance
    watcher: Watcher  # receives the events of the run
    base_dir: str | os.PathLike[str]  # folder for `module:name` and relative paths; default: the current folder
    runs_dir: str | os.PathLike[str]
    """Parent of the run's folder; default: `.osmosis/runs` of the workspace, else of `base_dir`."""


def evaluate(
    agent: AgentLike,
    dataset: DatasetLike = None,
    *,
    model: str | plans.ModelSpec,
    scorers: Sequence[str | ScoreFunction] | str | ScoreFunction = (),
    **options: Unpack[EvaluateOptions],
) -> Run:
    """Run an agent on every selected row, score its rollouts, and return the `Run` when it is over.

    `agent` is an agent loop, a workflow, or a name: `"module:agent"`, `"mcp:./folder"`, `"server:http://..."`, or an
    environment that brings its rows, `"verifiers:ID"`. `dataset` is a file, or rows: mappings with `user_prompt` (see
    docs/eval.md). `scorers` are functions, `"module:function"` or `"rubric:file.yaml#id"`. `model` is a name as on the
    command line, or a `ModelSpec`.

    An existing `name` is resumed where it stopped. Works inside a running event loop too (a notebook), which it blocks;
    in async code, await `evaluate_async`. Raise OsmosisError for problems of the whole run, before anything is spent
    where possible; a rollout or score that fails is data in the run."""
    plan, run_options = read_keywords(agent, dataset, model, scorers, options)
    return block_on(lambda: _run(plan, run_options))


def block_on(go: Callable[[], Coroutine[None, None, T]]) -> T:
    """Return the result of a coroutine, also inside a running event loop, which it blocks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run_main(go()))
    return _in_thread(go)


async def evaluate_async(
    agent: AgentLike,
    dataset: DatasetLike = None,
    *,
    model: str | plans.ModelSpec,
    scorers: Sequence[str | ScoreFunction] | str | ScoreFunction = (),
    **options: Unpack[EvaluateOptions],
) -> Run:
    """Run `evaluate` on the running event loop. Cancelling interrupts the run; the same `name` resumes it.

    Loading and checking, which read the dataset once, happen before the loop gets its first turn."""
    return await _run(*read_keywords(agent, dataset, model, scorers, options))


async def _run(plan: plans.EvalPlan, options: RunOptions) -> Run:
    # Not in a thread: it imports the user's code, which other code of this process must not see half done.
    prepared = prepare(plan, options)
    try:
        prepared.agree()
        return await prepared.run()
    finally:
        prepared.close()


def read_keywords(
    agent: AgentLike,
    dataset: DatasetLike,
    model: str | plans.ModelSpec,
    scorers: Sequence[str | ScoreFunction] | str | ScoreFunction,
    keywords: EvaluateOptions,
) -> tuple[plans.EvalPlan, RunOptions]:
    unknown = sorted(set(keywords) - set(EvaluateOptions.__annotations__))
    if unknown:
        near = get_close_matches(unknown[0], EvaluateOptions.__annotations__, 1)
        suggestion = f"; did you mean {near[0]}?" if near else ""
        raise TypeError(f"evaluate() got an unexpected keyword argument {unknown[0]!r}{suggestion}")
    agent_name, agent_object = (agent, None) if isinstance(agent, str) else _named(agent)
    score_fns, functions = _scorers([scorers] if isinstance(scorers, str) or callable(scorers) else scorers)
    options = _run_options(keywords, agent_object, functions)
    stem = str(dataset) if isinstance(dataset, (str, os.PathLike)) else "rows"
    name = check_name(keywords["name"] if "name" in keywords else generated_name(agent_name, stem))
    assert options.runs_dir is not None
    if dataset is None:
        if not is_foreign(agent_name):
            raise UsageError(f"evaluate() needs the rows for {agent_name}", hint='evaluate(agent, "data.jsonl", ...)')
        dataset = stem = str(write_foreign_dataset(agent_name, options.base_dir, options.runs_dir))
    path = stem if isinstance(dataset, (str, os.PathLike)) else str(_write(dataset, options.runs_dir / name))
    fields: JsonObject = {key: value for key, value in keywords.items() if key in plans.EvalPlan.model_fields}
    if "concurrency" not in keywords and "adaptive" not in keywords:
        fields |= plans.AUTO_CONCURRENCY
    fields |= {"name": name, "agent": agent_name, "dataset": path, "score_fns": score_fns}
    try:
        return plans.EvalPlan(**fields, model=_model(model, keywords)), options
    except PydanticError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the plan"
        raise ValidationError(f"{where}: {first['msg']}, got {first['input']!r}") from error


def _run_options(keywords: EvaluateOptions, agent: object, functions: Mapping[str, ScoreFunction]) -> RunOptions:
    check_classes(keywords.get("retry_failed") or ())
    base_dir = Path(keywords.get("base_dir", ".")).expanduser().absolute()
    runs = keywords.get("runs_dir")
    own = {field.name for field in dataclasses.fields(RunOptions)}
    fields: JsonObject = {key: value for key, value in keywords.items() if key in own and value is not None}
    fields |= {
        "base_dir": base_dir,
        "runs_dir": runs_folder(base_dir) if runs is None else Path(runs).expanduser().absolute(),
        "baselines": [parse_model(m) if isinstance(m, str) else m for m in keywords.get("baselines", ())],
        "workers": worker_count(str(keywords.get("workers", 1))),
    }
    if keywords.get("accept_changes"):
        fields["confirm"] = lambda _: True
    if fields.get("pilot") is not None and fields.get("confirm") is None:
        message = "a pilot run needs a confirmation before it continues"
        raise UsageError(message, hint="pass confirm=... or accept_changes=True")
    return RunOptions(**fields, environ=dict(os.environ), agent=agent, functions=functions)


def _model(model: str | plans.ModelSpec, keywords: EvaluateOptions) -> plans.ModelSpec:
    base_url, api_key_env = keywords.get("base_url"), keywords.get("api_key_env")
    if isinstance(model, str):
        return parse_model(model, base_url=base_url, api_key_env=api_key_env)
    if base_url is not None or api_key_env is not None:
        message = "a ModelSpec names its own endpoint and key"
        raise UsageError(message, hint="set base_url and api_key_env on the ModelSpec")
    return model


def _named(target: T) -> tuple[str, T | None]:
    name, findable = name_of(target)
    return name, None if findable else target


def _write(rows: Iterable[Mapping[str, object] | Row], folder: Path) -> Path:
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

    task = context.run(loop.create_task, run_main(go()))
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


def _scorers(functions_or_paths: Iterable[str | ScoreFunction]) -> tuple[list[str], dict[str, ScoreFunction]]:
    names: list[str] = []
    functions: dict[str, ScoreFunction] = {}
    for scorer in functions_or_paths:
        name, function = (scorer, None) if isinstance(scorer, str) else _named(scorer)
        names.append(name)
        if function is not None:
            functions[name] = function
    return names, functions
