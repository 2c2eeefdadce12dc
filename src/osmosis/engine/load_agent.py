import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from osmosis.engine.agent import Agent, Endpoints, LoopAgent, WorkflowAgent
from osmosis.engine.loader import load_module, load_object, source_files, source_of
from osmosis.engine.rubrics.rubric_files import RubricScorer
from osmosis.engine.scoring import FunctionScorer, Scorer, ScoreThreads
from osmosis.errors import LoadError
from osmosis.records.run.plan import EvalPlan
from osmosis.sdk.agent_loop import RolloutAgentLoop
from osmosis.sdk.backend import FinishedProgram, LocalBackend
from osmosis.sdk.foreign import is_foreign
from osmosis.sdk.types import AgentWorkflowConfig
from osmosis.sdk.workflow import AgentWorkflow, Grader, GraderClass


@dataclass(slots=True)
class LoadedAgent:
    name: str
    loop: RolloutAgentLoop | None = None
    backend: LocalBackend | None = None
    files: list[Path] = field(default_factory=list)

    @property
    def graded(self) -> bool:
        return self.backend is not None and self.backend.grader is not None

    @property
    def kind(self) -> str:
        if self.loop is not None:
            return "agent loop"
        return "workflow and grader" if self.graded else "workflow"

    def bind(self, plan: EvalPlan, *, endpoints: Endpoints | None = None, artifacts: Path | None = None) -> Agent:
        if self.backend is not None:
            return WorkflowAgent(self.backend, plan, endpoints, artifacts)
        assert self.loop is not None
        return LoopAgent(self.loop, plan)


def load_agent(path: str, base_dir: Path, *, grader: str | GraderClass | None = None) -> LoadedAgent:
    """Load the agent at `module:attribute`, of another package, or the one that a module or file defines."""
    if is_foreign(path):
        return _agent(path, load_object(path, base_dir), None, grader, base_dir)
    if ":" in path:
        target = load_object(path, base_dir)
        owner = getattr(target, "__module__", None) or type(target).__module__
        named = load_module(path.partition(":")[0], base_dir)
        module = named if not isinstance(owner, str) or owner.startswith("osmosis.") else sys.modules.get(owner, named)
    else:
        module = load_module(path, base_dir)
        target = module
    agent = _agent(path, target, module, grader, base_dir)
    agent.files = source_files(module, base_dir)
    return agent


def load_grading(path: str, base_dir: Path) -> LoadedAgent:
    module = load_module(path.partition(":")[0], base_dir)
    grader = _grader_class(path, base_dir) if ":" in path else _only_grader(path, module)
    if grader is None:
        raise LoadError(f"{path} defines no grader", hint="write a subclass of osmosis.Grader in it")
    backend = LocalBackend(FinishedProgram, AgentWorkflowConfig(name=path), grader)
    return LoadedAgent(path, backend=backend, files=source_files(module, base_dir))


def agent_of(target: object, name: str, base_dir: Path, *, grader: str | GraderClass | None = None) -> LoadedAgent:
    owner = target if inspect.isclass(target) else type(target)
    agent = _agent(name, target, sys.modules.get(owner.__module__), grader, base_dir)
    agent.files = source_of(target, base_dir)[0]
    return agent


def _agent(
    path: str, target: object, module: ModuleType | None, grader: str | GraderClass | None, base_dir: Path
) -> LoadedAgent:
    if module is not None and target is module:
        target = _only_agent(path, module)
    loop = _loop(path, target)
    if loop is None:
        return LoadedAgent(path, backend=_backend(path, target, module, grader, base_dir))
    if grader:
        name = grader.rpartition(":")[2] if isinstance(grader, str) else grader.__name__
        message = f"{path} is an agent loop, which is scored by score functions: {name} would not be used"
        raise LoadError(message, hint="leave out --grader")
    return LoadedAgent(path, loop=loop)


def _loop(path: str, target: object) -> RolloutAgentLoop | None:
    if not inspect.isclass(target):
        return target if isinstance(target, RolloutAgentLoop) else None
    if not issubclass(target, RolloutAgentLoop):
        return None
    try:
        return target()
    except Exception as error:
        message = f"{path}: {target.__name__}() needs arguments: {type(error).__name__}: {error}"
        hint = f"create the instance in the module and name that: agent_loop = {target.__name__}(...)"
        raise LoadError(message, hint=hint) from error


def _backend(
    path: str, target: object, module: ModuleType | None, grader: str | GraderClass | None, base_dir: Path
) -> LocalBackend:
    grader_class = _grader_class(grader, base_dir)
    if isinstance(target, LocalBackend):
        if grader_class is not None:
            raise LoadError(f"{path} brings its own grader, not {grader_class.__name__}", hint="leave out --grader")
        return target
    if isinstance(target, AgentWorkflow):
        target = type(target)
    if inspect.isclass(target) and issubclass(target, AgentWorkflow):
        # A config without a limit: how many run at once is the plan's decision here.
        config = AgentWorkflowConfig(name=target.__name__)
        return LocalBackend(target, config, grader_class or _only_grader(path, module))
    from osmosis.sdk.harbor.backend import HarborBackend  # of all agents, the fewest are one

    if isinstance(target, HarborBackend):
        message = f"{path} is a HarborBackend: its agent runs in sandboxes, which cannot call into this process"
        hint = f"serve it (`osmosis serve -m {path} --local`), then evaluate that with --server URL"
        raise LoadError(message, hint=hint)
    hint = "name a RolloutAgentLoop (instance or class), an AgentWorkflow class or a LocalBackend"
    raise LoadError(f"{path} is a {type(target).__name__}, not an agent", hint=hint)


def _grader_class(grader: str | GraderClass | None, base_dir: Path) -> GraderClass | None:
    if not grader:
        return None
    target: object = load_object(grader, base_dir) if isinstance(grader, str) else grader
    if not (inspect.isclass(target) and issubclass(target, Grader)):
        raise LoadError(f"{grader} is not a subclass of Grader", hint="name a subclass of Grader")
    return target


_OURS = ("osmosis", "osmosis_ai")


def _own(module: ModuleType, base: type) -> list[Any]:
    classes = [v for v in vars(module).values() if inspect.isclass(v) and issubclass(v, base)]
    concrete = [v for v in classes if not inspect.isabstract(v) and v.__module__.partition(".")[0] not in _OURS]
    return [v for v in concrete if v.__module__ == module.__name__] or concrete


def _only_grader(path: str, module: ModuleType | None) -> GraderClass | None:
    graders = _own(module, Grader) if module else []
    if len(graders) > 1:
        names = ", ".join(g.__name__ for g in graders)
        raise LoadError(f"{path} has several graders: {names}", hint="choose one with --grader module:Class")
    return graders[0] if graders else None


def _only_agent(path: str, module: ModuleType) -> object:
    ready = [v for v in vars(module).values() if isinstance(v, (RolloutAgentLoop, LocalBackend))]
    candidates = list(dict.fromkeys(ready)) or _own(module, RolloutAgentLoop) or _own(module, AgentWorkflow)
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise LoadError(f"{path} defines no agent", hint="write module:attribute, for example server:agent_loop")
    names = ", ".join(sorted(n for n, v in vars(module).items() if any(v is f for f in candidates)))
    raise LoadError(f"{path} defines several agents: {names}", hint=f"name one: {path}:{names.split(', ')[0]}")


def load_scorers(
    paths: Sequence[str],
    base_dir: Path,
    *,
    timeout_s: float | None = None,
    environ: Mapping[str, str] | None = None,
    functions: Mapping[str, Callable[..., object]] | None = None,
) -> list[Scorer]:
    doubled = sorted({path for path in paths if list(paths).count(path) > 1})
    if doubled:
        raise LoadError(f"score function listed twice: {', '.join(doubled)}", hint="name each --eval-fn once")
    threads = ScoreThreads()
    scorers: list[Scorer] = []
    for path in paths:
        if path.startswith("rubric:"):
            scorers.append(RubricScorer.load(path, base_dir, timeout_s=timeout_s, environ=environ))
            continue
        target = functions[path] if functions and path in functions else load_object(path, base_dir)
        if isinstance(target, type):
            target = target()
        if not callable(target):
            raise LoadError(f"{path} is a {type(target).__name__}, not a function", hint="name a score function")
        scorers.append(FunctionScorer(path, target, threads=threads, timeout_s=timeout_s))
    return scorers


async def close_scorers(scorers: Sequence[Scorer]) -> None:
    for scorer in scorers:
        close = getattr(scorer, "close", None)
        if close is not None:
            await close()
