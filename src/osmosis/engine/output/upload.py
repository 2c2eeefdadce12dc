"""A finished local run as files for a platform, derived from its journal, without secrets."""

import hashlib
import re
import shutil
from pathlib import Path

import orjson

from osmosis.base.jsonable import JsonObject
from osmosis.engine.journal import Journal
from osmosis.errors import Conflict
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.report import Report

SCHEMA = 1
_ROLLOUT = re.compile(r"^rollouts/([^/]+)/(.+)\Z")


def export(journal: Journal, folder: Path) -> JsonObject:
    plan, report = journal.plan(), complete_report(journal)
    (folder / "trajectories").mkdir(parents=True, exist_ok=True)
    rows: set[int] = set()
    count = 0
    first: dict[str, object] = {}
    with (folder / "index.jsonl").open("wb") as index:
        for line in journal.lines():
            first = first or line
            rows.add(line["row_index"])
            count += 1
            name = f"row_{line['row_index']}_run_{line['attempt']}.json"
            (folder / "trajectories" / name).write_bytes(orjson.dumps(line) + b"\n")
            index.write(orjson.dumps(index_row(line, name)) + b"\n")
    if count != report.completed:
        raise Conflict(
            f"run {plan.name} was resumed and has not finished: {count} rollouts, {report.completed} in its report",
            hint=f"osmosis eval resume {plan.name}",
        )
    for path in (journal.tokens_path, journal.annotations_path):
        if path.exists():
            shutil.copyfile(path, folder / path.name)
    progress = {"status": "finished", "total": report.total, "completed": report.completed}
    (folder / "progress.json").write_bytes(orjson.dumps(progress) + b"\n")
    (folder / "report.json").write_bytes(orjson.dumps(report.to_dict()) + b"\n")
    return _manifest(journal.run(), plan, report, folder, sorted(rows), first)


def complete_report(journal: Journal) -> Report:
    report, name = journal.report(), journal.plan().name
    if report is None or report.completed < report.total:
        done = f": {report.completed} of {report.total} rollouts" if report else ""
        raise Conflict(f"run {name} has not finished{done}", hint=f"osmosis eval resume {name}, then upload again")
    return report


def index_row(line: JsonObject, trajectory: str) -> dict[str, object]:
    score = next(iter((line.get("scores") or {}).values()), None) if line["status"] == "success" else None
    usage, failure = line.get("usage") or {}, line.get("failure") or (score or {}).get("failure")
    return {
        "row_index": line["row_index"],
        "run_index": line["attempt"],
        "rollout_id": line["rollout_id"],
        "trajectory_filename": trajectory,
        "status": line["status"],
        "reward": score.get("value") if score else None,
        "tokens": usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0),
        "duration_ms": line.get("duration_ms", 0.0),
        "error_type": failure["category"] if failure else None,
    }


def _manifest(
    run: JsonObject, plan: EvalPlan, report: Report, folder: Path, rows: list[int], first: JsonObject
) -> dict[str, object]:
    git = plan.provenance.get("git") or {}
    sessions = run.get("sessions") or [{}]
    rollout, entrypoint = _code(plan.agent)
    digest = (first.get("hashes") or {}).get("agent")
    source = {"name": rollout, "source_digest": digest, "branch": git.get("branch"), "commit_sha": git.get("commit")}
    body: dict[str, object] = {
        "schema_version": SCHEMA,
        "local_run_id": hashlib.sha256(f"{plan.name}|{run.get('created_at')}".encode()).hexdigest()[:32],
        "run": {
            "name": plan.name,
            "started_at": run.get("created_at"),
            "completed_at": sessions[-1].get("ended_at"),
            "experiment_config": {
                "rollout": {key: value for key, value in source.items() if value},
                "entrypoint": entrypoint,
                "model_path": plan.model.name,
                "dataset": {"name": Path(plan.dataset).stem, "sha256": plan.dataset_hash, "selected_source_rows": rows},
            },
            "evaluation_config": {"n": report.attempts, "pass_threshold": report.pass_threshold},
        },
        "schema_versions": {"journal": run.get("schema", SCHEMA), "trajectory": "rollout"},
        "provenance": public_provenance(plan),
        "files": [_file(path, folder) for path in sorted(folder.rglob("*")) if path.is_file()],
    }
    return {**body, "manifest_digest": hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()}


def _code(agent: str) -> tuple[str, str]:
    if match := _ROLLOUT.match(agent):
        return match[1], match[2]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", agent.partition(":")[0]).strip("-.") or "agent", agent


def public_provenance(plan: EvalPlan) -> dict[str, object]:
    versions = ("osmosis", "python", "platform")
    selected: dict[str, object] = {key: plan.provenance[key] for key in versions if key in plan.provenance}
    git = {key: value for key, value in (plan.provenance.get("git") or {}).items() if key not in ("diff", "untracked")}
    return {**selected, **({"git": git} if git else {})}


def _file(path: Path, folder: Path) -> dict[str, object]:
    data = path.read_bytes()
    return {"path": path.relative_to(folder).as_posix(), "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
