"""The inputs of a result as four hashes (agent code, row, sampling, score functions), and the provenance of a run
(versions, git commit, uncommitted changes). A resume compares the hashes to decide what to reuse, grade again and run
again. Provenance decides nothing."""

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

from osmosis._version import __version__
from osmosis.base.git import Git, GitError, to_valid_text
from osmosis.base.jsonable import JsonObject
from osmosis.base.redact import without_credentials
from osmosis.engine.loader import load_module, source_files, source_hash, source_of
from osmosis.records.run.plan import EvalPlan

_DIFF_LIMIT = 200_000
_UNTRACKED_SHOWN = 20


def digest(*parts: object) -> str:
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS, default=str)).hexdigest()[:16]


def plan_hashes(
    plan: EvalPlan, *, agent_files: Sequence[Path], base_dir: Path, objects: Mapping[str, object] | None = None
) -> dict[str, str]:
    agent: list[object] = [plan.agent, plan.max_turns, plan.max_tokens_total, source_hash(list(agent_files))]
    for own in (plan.limits, plan.sandbox, plan.program):
        agent += [own.to_dict()] if own != type(own)() else []
    if objects and plan.agent in objects:
        agent.append(source_of(objects[plan.agent], base_dir)[1])
    model, kind = plan.model, plan.model.kind
    if kind in ("messages", "responses"):  # a run that began when these were asked otherwise is resumed, not paid twice
        kind = "openai" if model.base_url else "litellm"
    return {
        "agent": digest(*agent),
        "sampling": digest(model.name, kind, model.base_url, model.params, model.seed),
        "score": score_hash(plan.score_fns, base_dir, objects=objects),
    }


def score_hash(paths: Sequence[str], base_dir: Path, *, objects: Mapping[str, object] | None = None) -> str:
    files, texts = _score_sources(paths, base_dir, objects)
    return digest(sorted(paths), source_hash(files), *texts)


def score_files(paths: Sequence[str], base_dir: Path, *, objects: Mapping[str, object] | None = None) -> list[Path]:
    return _score_sources(paths, base_dir, objects)[0]


def _score_sources(
    paths: Sequence[str], base_dir: Path, objects: Mapping[str, object] | None
) -> tuple[list[Path], list[str]]:
    files: list[Path] = []
    texts: list[str] = []
    for path in paths:
        module, _, attribute = path.partition(":")
        if objects and path in objects:
            own, text = source_of(objects[path], base_dir)
            files.extend(own)
            texts.extend([text] if text else [])
        elif module == "rubric":
            files.append(base_dir / attribute.partition("#")[0])
        else:
            files.extend(source_files(load_module(module, base_dir), base_dir))
    return sorted(set(files)), texts


def folder_files(folder: Path) -> list[Path]:
    skipped = {".venv", "__pycache__", ".git", "node_modules"}
    return sorted(p for p in folder.rglob("*.py") if not skipped & set(p.relative_to(folder).parts))


def provenance(base_dir: Path) -> dict[str, object]:
    record: JsonObject = {
        "osmosis": __version__,
        "python": sys.version.split()[0],
        "platform": sys.platform,
        "folder": str(base_dir),
    }
    if not any((folder / ".git").exists() for folder in (base_dir, *base_dir.parents)):
        return record
    # Our own journals are no change of anything.
    status = _git(base_dir, "status", "--porcelain=v2", "--branch", "--", ":(top)", ":(exclude,glob)**/.osmosis/**")
    head = dict(line[2:].split(" ", 1) for line in (status or "").splitlines() if line.startswith("# "))
    commit = head.get("branch.oid", "(initial)")
    if status is None or commit == "(initial)":
        return record
    changes = [line for line in status.splitlines() if not line.startswith("#")]
    untracked = [line[2:] for line in changes if line.startswith("? ")]
    record["git"] = {"commit": commit, "branch": head.get("branch.head", ""), "dirty": bool(changes)}
    origin = _git(base_dir, "config", "--get", "remote.origin.url")
    if origin:
        record["git"]["repository"] = without_credentials(origin)
    if untracked:
        record["git"]["untracked"] = untracked[:_UNTRACKED_SHOWN]
    if len(untracked) < len(changes):
        diff = _git(base_dir, "diff", "HEAD", "--no-ext-diff", "--no-color") or ""
        record["git"]["diff_sha256"] = hashlib.sha256(diff.encode()).hexdigest()
        record["git"]["diff"] = diff[:_DIFF_LIMIT]
    return record


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        return to_valid_text(Git(folder, timeout_s=10.0).text(*arguments))
    except GitError:
        return None
