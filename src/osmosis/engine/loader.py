import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

from osmosis.errors import LoadError
from osmosis.sdk.foreign import is_foreign, open_foreign

_SKIPPED = ("site-packages", "dist-packages")


def load_object(path: str, base_dir: Path) -> object:
    """Return the object at `module:attribute` or `folder/file.py:attribute`, or another package's backend."""
    if is_foreign(path):
        return open_foreign(path, base_dir).backend
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise LoadError(f"{path!r} does not name an object", hint="write module:attribute, such as server:agent_loop")
    target: object = load_module(module_name, base_dir)
    for part in attribute.split("."):
        if not hasattr(target, part):
            public = [n for n in dir(target) if not n.startswith("_")]
            close = difflib.get_close_matches(part, public, n=1)
            module = path.partition(":")[0]
            hint = f"did you mean {module}:{close[0]}?" if close else f"available: {', '.join(public[:12])}"
            raise LoadError(f"{getattr(target, '__name__', module)} has no attribute {part!r}", hint=hint)
        target = getattr(target, part)
    return target


def load_module(name: str, base_dir: Path) -> ModuleType:
    base = str(base_dir.resolve())
    if base not in sys.path:
        sys.path.insert(0, base)
    try:
        if name.endswith(".py"):
            return _load_file((base_dir / name).resolve())
        importlib.invalidate_caches()
        _forget_stranger(name, base_dir.resolve())
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (error.name == name or name.startswith(error.name + ".")):
            stems = [p.stem for p in base_dir.glob("*.py")]
            close = difflib.get_close_matches(name.split(".")[0], stems, n=1)
            hint = f"did you mean {close[0]}?" if close else "run the command in the folder that holds the module"
            raise LoadError(f"there is no module {error.name!r} in {base} or in this environment", hint=hint) from error
        raise _failed(name, error, f"it imports {error.name!r}, which is not installed") from error
    except LoadError:
        raise
    except SyntaxError as error:
        raise LoadError(
            f"{error.filename}:{error.lineno}: {error.msg}", hint="fix the syntax error", module=name
        ) from error
    except Exception as error:
        raise _failed(name, error, f"{type(error).__name__}: {error}") from error
    except SystemExit as error:
        raise _failed(name, error, f"it exits while it is imported (status {error.code})") from error


def forget_modules(folder: Path) -> None:
    """Forget what was imported from a folder, so that its like from another folder is loaded."""
    inside = f"{folder.resolve()}{os.sep}"
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(inside):
            del sys.modules[name]
    sys.path[:] = [path for path in sys.path if not path.startswith(inside)]


def _forget_stranger(name: str, base: Path) -> None:
    top = name.partition(".")[0]
    loaded = getattr(sys.modules.get(top), "__file__", None)
    ours = [base / f"{top}.py", base / top / "__init__.py"]
    if not loaded or top in sys.stdlib_module_names or not any(p.is_file() for p in ours):
        return
    if Path(loaded).resolve() not in ours:
        for key in [k for k in sys.modules if k == top or k.startswith(top + ".")]:
            del sys.modules[key]
        sys.path.remove(str(base))
        sys.path.insert(0, str(base))


def name_of(target: object) -> tuple[str, bool]:
    owner = target if hasattr(target, "__qualname__") else type(target)
    name, module_name = owner.__qualname__, getattr(target, "__module__", None) or owner.__module__
    module = sys.modules.get(module_name)
    if owner is not target:
        name = next((key for key, value in vars(module).items() if value is target), name) if module else name
    stored: object = functools.reduce(lambda owner, part: getattr(owner, part, None), name.split("."), module)
    if module is None or module_name == "__main__" or stored is not target:
        return name.rpartition(".")[2], False
    return f"{module_name}:{name}", True


def source_of(target: object, base_dir: Path) -> tuple[list[Path], str]:
    owner = target if hasattr(target, "__qualname__") else type(target)
    names = [getattr(owner, "__module__", None) or "", *([] if name_of(target)[1] else ["__main__"])]
    modules = [sys.modules[name] for name in names if name in sys.modules]
    files = list(dict.fromkeys(file for module in modules for file in source_files(module, base_dir)))
    if files:
        return files, ""
    try:
        return [], inspect.getsource(owner)  # type: ignore[arg-type]  # TypeError is caught
    except (OSError, TypeError):
        return [], ""


def source_hash(files: list[Path]) -> str:
    digests = sorted(hashlib.sha256(f.read_bytes()).hexdigest() for f in files if f.is_file())
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:16]


def source_files(module: ModuleType, base_dir: Path) -> list[Path]:
    root = base_dir.resolve()
    files: dict[Path, None] = {}
    queue = [module]
    while queue:
        current = queue.pop()
        file = _local_file(current, root)
        if file is None or file in files:
            continue
        files[file] = None
        for value in list(vars(current).values()):
            if isinstance(value, ModuleType):
                queue.append(value)
            elif (owner := getattr(value, "__module__", None)) and isinstance(owner, str) and owner in sys.modules:
                queue.append(sys.modules[owner])
    return list(files)


def _local_file(module: ModuleType, root: Path) -> Path | None:
    name = getattr(module, "__file__", None)
    if not name or not name.endswith(".py"):
        return None
    file = Path(name).resolve()
    inside = root in file.parents and not any(part in _SKIPPED for part in file.relative_to(root).parts)
    return file if inside else None


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise LoadError(f"there is no file {path}", hint="check the path")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = "osmosis_loaded_" + hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LoadError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _failed(name: str, error: BaseException, problem: str) -> LoadError:
    files = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    own = [f for f in files if f[0] != __file__ and not f[0].startswith("<frozen") and "importlib/" not in f[0]]
    where = f"{own[-1][0]}:{own[-1][1]}" if own else name
    tail = "".join(traceback.format_exception(type(error), error, error.__traceback__)[-6:])
    again = f"python {name}" if name.endswith(".py") else f"python -c 'import {name}'"
    return LoadError(f"{where}: {problem}", hint=f"`{again}` shows the whole error", module=name, traceback=tail)
