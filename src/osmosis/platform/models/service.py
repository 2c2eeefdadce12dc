"""The model store of a workspace: uploaded base models, and checkpoints in the folders of their runs."""

import json
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.base import model_folder
from osmosis.errors import Conflict, NotFound, ValidationError
from osmosis.platform import Platform, tables
from osmosis.platform.db import count_of
from osmosis.platform.objects.store import Objects
from osmosis.platform.runs import lifecycle
from osmosis.platform.scheduling import leases
from osmosis.platform.settings import PlatformSettings
from osmosis.platform.workspaces import quotas
from osmosis.records.api.training import AnnouncedFile, ModelFile, ModelRow
from osmosis.records.base import utc_now
from osmosis.records.run.job import CheckpointReport, hold_file
from osmosis.records.run.plan import PLATFORM_MODEL
from osmosis.records.run.status import RunStatus

READY, UPLOADING = "ready", "uploading"
MAX_NAME = 128


def folder_of(settings: PlatformSettings, model_id: str) -> Path:
    return settings.models_dir / "base" / model_id


def parts_key(model_id: str, number: int) -> str:
    return f"{uploads_key(model_id)}{number}/"


def uploads_key(model_id: str) -> str:
    return f"models/uploads/{model_id}/"


def key_of(model_id: str) -> str:
    return f"models/base/{model_id}/"


def checkpoints_of(settings: PlatformSettings, run_id: str) -> Path:
    return settings.models_dir / "runs" / run_id


def announce(
    session: Session,
    platform: Platform,
    workspace: tables.Workspace,
    user: tables.User,
    name: str,
    files: Sequence[AnnouncedFile],
) -> tuple[tables.BaseModel, list[str]]:
    """Return a model that waits for its files, or the same one, and keys to delete after the session."""
    check_name(name)
    _check(platform, files)
    entries = [file.to_dict() for file in sorted(files, key=lambda file: file.path)]
    query = sa.select(tables.BaseModel).filter_by(workspace_id=workspace.id, name=name)
    model = session.scalars(query.with_for_update()).first()
    if model is not None and model.files == entries:
        return model, []
    if model is not None and model.status == READY:
        message = f"a base model named {name!r} already exists, with other files"
        raise Conflict(message, hint=f"osmosis model delete {name}, or upload it under another name: --name NAME")
    quotas.check_bytes(session, workspace, sum(file.size for file in files))
    left = [] if model is None else [key_of(model.id), uploads_key(model.id)]
    if model is not None:  # its successor has another id, so that nothing of it is in the way
        session.delete(model)
        session.flush()
    model = tables.BaseModel(workspace_id=workspace.id, creator_id=user.id, name=name)
    session.add(model)
    model.status, model.files = UPLOADING, entries
    model.size, model.updated_at = sum(file.size for file in files), utc_now()
    session.flush()
    return model, left


def check_name(name: str) -> None:
    if not name or len(name) > MAX_NAME or not all(c.isalnum() or c in "._-" for c in name) or not name[0].isalnum():
        message = f"{name!r} is not a name for a model: use letters, digits, '.', '_' and '-', at most {MAX_NAME}"
        raise ValidationError(message, hint="--name NAME", field="name")


def _check(platform: Platform, files: Sequence[AnnouncedFile]) -> None:
    for file in files:
        model_folder.check_name(file.path)
        if file.size > model_folder.MAX_TEXT_BYTES and not file.path.endswith(".safetensors"):
            raise ValidationError(f"{file.path} has more than {model_folder.MAX_TEXT_BYTES >> 20} MB", field="files")
    if len({file.path for file in files}) < len(files) or not 0 < len(files) <= model_folder.MAX_FILES:
        raise ValidationError(f"a model has 1 to {model_folder.MAX_FILES} files, each once", field="files")
    size = sum(file.size for file in files)
    free = shutil.disk_usage(platform.settings.data_dir).free
    if size > min(model_folder.MAX_BYTES, free):
        message = f"the model has {size / 1e9:.1f} GB, and the platform's disk has {free / 1e9:.1f} GB free"
        raise ValidationError(message, hint="free up space there, or move its data folder: OSMOSIS_DATA_DIR")


def find_base(session: Session, workspace: tables.Workspace, name_or_id: str) -> tables.BaseModel:
    for column in (tables.BaseModel.name, tables.BaseModel.id):
        query = sa.select(tables.BaseModel).where(tables.BaseModel.workspace_id == workspace.id, column == name_or_id)
        if (row := session.scalars(query).first()) is not None:
            return row
    raise NotFound(f"no base model named {name_or_id!r} on this platform", hint="osmosis model list --type base")


def files_of(objects: Objects, model: tables.BaseModel) -> list[ModelFile]:
    complete, parts = set[str](), dict[str, list[int]]()
    if model.status != READY:
        complete = {entry.key.removeprefix(key_of(model.id)) for entry in objects.list(key_of(model.id))}
        for entry in objects.list(uploads_key(model.id)):
            number, _, part = entry.key.removeprefix(uploads_key(model.id)).partition("/")
            if part.isdigit():
                parts.setdefault(number, []).append(int(part))
    files = []
    for position, file in enumerate(model.files):
        path = AnnouncedFile.model_validate(file)
        state = "uploaded" if model.status == READY or path.path in complete else "pending"
        part_numbers = sorted(parts.get(str(position), ()))
        files.append(ModelFile(path=path.path, size=path.size, sha256=path.sha256, state=state, parts=part_numbers))
    return files


def mark_ready(platform: Platform, model_id: str) -> None:
    settings = platform.settings
    with platform.db.read() as session:
        model = session.get_one(tables.BaseModel, model_id)
    missing = [file.path for file in files_of(platform.objects, model) if file.state != "uploaded"]
    if missing:
        raise Conflict(f"{len(missing)} files of model {model.name!r} are not here yet: {missing[0]}, ...")
    for file in map(AnnouncedFile.model_validate, model.files):
        platform.objects.fetch(key_of(model_id) + file.path)
    facts = model_folder.check_model(folder_of(settings, model_id))
    with platform.db.write() as session:
        stored = session.get_one(tables.BaseModel, model_id)
        stored.status, stored.updated_at = READY, utc_now()
        stored.architecture, stored.parameters = facts.architecture, facts.parameters
        stored.context_length, stored.chat_template = facts.context_length, facts.chat_template
    delete_files(platform, uploads_key(model_id))


def refuse_in_use(session: Session, workspace_id: str, name: str) -> None:
    used = [name, f"{PLATFORM_MODEL}{name}"]
    adapters = select_trained(workspace_id).where(tables.Checkpoint.base_model == name)
    of_it = adapters.with_only_columns(tables.Checkpoint.name)
    served = sa.or_(tables.Deployment.name == name, tables.Deployment.name.in_(of_it))
    if (deployed := _find_live(session, tables.Deployment, workspace_id, served)) is not None:
        subject = "it is" if deployed.name == name else f"its adapter {deployed.name!r} is"
        hint = f"osmosis model undeploy {deployed.name}"
        raise Conflict(f"model {name!r} cannot be deleted: {subject} deployed", hint=hint)
    by_run = _find_live(session, tables.Run, workspace_id, tables.Run.model_path.in_(used))
    if work := by_run or _find_live(session, tables.Merge, workspace_id, tables.Merge.adapter == name):
        raise Conflict(f"model {name!r} is in use by run {work.name!r}", hint="wait for the run, or stop it first")


def _find_live(
    session: Session, table: type[tables.Work], workspace_id: str, condition: sa.ColumnElement[bool]
) -> tables.Work | None:
    live = table.workspace_id == workspace_id, lifecycle.is_live(table), condition
    return session.scalars(sa.select(table).where(*live).limit(1)).first()


def select_trained(workspace_id: str) -> sa.Select[tables.Checkpoint]:
    return sa.select(tables.Checkpoint).join(tables.Run).where(tables.Run.workspace_id == workspace_id)


def find_trained(session: Session, workspace_id: str, name: str) -> tables.Checkpoint:
    """Return a checkpoint by name or id, or the best, else the last, of a training run."""
    condition = sa.or_(tables.Checkpoint.name == name, tables.Checkpoint.id == name)
    row: tables.Checkpoint | None = session.scalars(select_trained(workspace_id).where(condition)).first()
    if row is None:
        of_run = select_trained(workspace_id).where(tables.Run.name == name, tables.Run.kind == "training")
        best = of_run.order_by(tables.Checkpoint.reward.desc().nulls_last(), tables.Checkpoint.step.desc())
        row = session.scalars(best).first()
    if row is None:
        raise NotFound(f"no model named {name!r}", hint="osmosis model list")
    return row


def find_start(session: Session, workspace_id: str, name: str) -> tables.Checkpoint | None:
    """Return the checkpoint that a training of this model goes on from, None for a base model."""
    same = tables.BaseModel.workspace_id == workspace_id, tables.BaseModel.name == name
    if "/" in name or count_of(session, sa.select(tables.BaseModel).where(*same)):
        return None
    try:
        return find_trained(session, workspace_id, name)
    except NotFound:
        return None


def weights_of(settings: PlatformSettings, checkpoint: tables.Checkpoint) -> Path:
    folder = settings.located(checkpoint.path)
    if (folder / TINKER).is_file():
        weights = json.loads((folder / TINKER).read_text("utf-8"))["weights"]
        message = f"model {checkpoint.name!r} is on the Tinker server that trained it: {weights}"
        raise Conflict(message, hint="ask that server for it, under this name")
    if not settings.objects and not any((folder / name).is_file() for name in (ADAPTER, model_folder.CONFIG)):
        message = f"the files of model {checkpoint.name!r} are gone: a newer checkpoint took their place"
        raise Conflict(message, hint="osmosis model list; [checkpoints] keep = N keeps more of them")
    return folder


ADAPTER = "adapter_model.safetensors"
TINKER = "tinker.json"


@dataclass(frozen=True, slots=True)
class Served:
    base: str
    adapter: str = ""
    tokenizer: str = ""  # Folder or hub name, for a model that an engine elsewhere serves


def resolve_served(session: Session, settings: PlatformSettings, workspace_id: str, model: str) -> Served:
    """Return what `osmosis/NAME` means: a base model, a checkpoint, or a run's best. Raise ValidationError."""
    name = model.removeprefix(PLATFORM_MODEL)
    if "/" in name or count_of(session, sa.select(tables.BaseModel).filter_by(workspace_id=workspace_id, name=name)):
        return Served(resolve(session, settings, workspace_id, name))
    try:
        checkpoint = find_trained(session, workspace_id, name)
        folder = weights_of(settings, checkpoint)
    except (NotFound, Conflict) as error:
        raise _unusable(error.message, error.hint or "osmosis model list") from None
    if tune_of(session.get_one(tables.Run, checkpoint.run_id)) == "full":
        return Served(str(folder))
    return Served(resolve(session, settings, workspace_id, checkpoint.base_model), str(folder))


def tune_of(run: tables.Run) -> str:
    """Return what a training run trains: `lora` an adapter, `full` every weight."""
    return run.config.get("advanced", {}).get("tune", "lora")


def resolve(
    session: Session, settings: PlatformSettings, workspace_id: str, model_name: str, *, weights: bool = True
) -> str:
    """Return a base model of the store, an allowed folder, else a hub name, which the job resolves."""
    query = sa.select(tables.BaseModel).filter_by(workspace_id=workspace_id, name=model_name)
    if (model := session.scalars(query).first()) is not None:
        if model.status != READY:
            message = f"base model {model_name!r} is not complete"
            raise _unusable(message, f"osmosis model upload FOLDER --name {model_name}")
        return str(folder_of(settings, model.id))
    if model_name.startswith(("/", "./", "../", "~")):
        return _folder(settings, model_name, weights=weights)
    if model_name.count("/") != 1:
        near = f"no base model named {model_name!r} on this platform, and it is not a hub name (OWNER/NAME)"
        raise _unusable(near, f"osmosis model list --type base, or: osmosis model upload FOLDER --name {model_name}")
    return model_name


def _folder(settings: PlatformSettings, model: str, *, weights: bool) -> str:
    allowed = [Path(part).expanduser().resolve() for part in settings.model_folders.split(":") if part]
    folder = Path(model).expanduser()
    places = [folder] if folder.is_absolute() else [root / folder for root in allowed]
    for base in places:
        real = base.resolve()
        if real.is_dir() and any(real.is_relative_to(root) for root in allowed):
            (model_folder.check_model if weights else model_folder.check_tokenizer)(real)
            return str(real)
    if not allowed:
        fix = "osmosis model upload FOLDER, then name the model; or let the operator set OSMOSIS_MODEL_FOLDERS"
        raise _unusable("this platform takes no folders of its machine as base models", fix)
    message = f"there is no folder {model} below those that this platform takes base models from"
    raise _unusable(message, "osmosis model upload FOLDER, then name the model")


def _unusable(message: str, hint: str) -> ValidationError:
    issue = {"key": "experiment.model_path", "message": message, "hint": hint}
    return ValidationError(message, hint=hint, issues=[issue])


def delete_files(platform: Platform, *keys: str) -> None:
    for key in keys:
        if key.startswith("models/"):
            platform.objects.delete(key.rstrip("/") + "/")


def delete_trained(session: Session, checkpoint: tables.Checkpoint) -> None:
    run = session.get_one(tables.Run, checkpoint.run_id)
    if not RunStatus(run.status).over:
        raise Conflict(f"run {run.name!r} is {run.status} and may resume from it", hint="wait for the run, or stop it")
    refuse_in_use(session, run.workspace_id, checkpoint.name)
    session.delete(checkpoint)


def base_row(model: tables.BaseModel) -> ModelRow:
    return ModelRow.from_row(model, model_name=model.name, base_model=model.name, context_window=model.context_length)


def trained_row(checkpoint: tables.Checkpoint, run: tables.Run) -> ModelRow:
    names = {"model_name": checkpoint.name, "training_run_name": run.name, "checkpoint_step": checkpoint.step}
    names["tune"] = tune_of(run)
    return ModelRow.from_row(checkpoint, **names)


SENT = re.compile(r"^step-\d{6,12}\Z")
REMOVED = "removed"  # Key in a checkpoint's details: its run removed it while it was in use


def store_checkpoints(
    session: Session, settings: PlatformSettings, run: tables.Run, reports: Iterable[CheckpointReport]
) -> int:
    """Store new checkpoints, forget removed ones; return how many were new. Raise ValidationError."""
    rows = {row.step: row for row in session.scalars(sa.select(tables.Checkpoint).filter_by(run_id=run.id))}
    start = find_start(session, run.workspace_id, run.model_path)
    base_model = start.base_model if start else run.model_path
    used = set[str]()
    users = (tables.Deployment, tables.Deployment.name), (tables.Merge, tables.Merge.adapter)
    for table, column in (*users, (tables.Run, tables.Run.model_path)):
        live = sa.select(column).where(table.workspace_id == run.workspace_id, lifecycle.is_live(table))
        used.update(session.scalars(live))
    for checkpoint in rows.values():
        if checkpoint.name not in used:
            hold_file(settings.located(checkpoint.path)).unlink(missing_ok=True)
    removed_paths = {removed_row.path for removed_row in rows.values() if (removed_row.details or {}).get(REMOVED)}
    new = 0
    for report in reports:
        path = _checkpoint_path(settings, run, report.path)
        row = rows.get(report.step)
        if row is None:
            name = f"{run.name}-step-{report.step}"
            row = rows[report.step] = tables.Checkpoint(run_id=run.id, step=report.step, name=name)
            session.add(row)
            new += 1
        row.status, row.base_model, row.path = READY, base_model, path
        row.reward = report.reward if report.reward is not None else row.reward
        row.details = {"kind": report.kind}
        removed_paths |= {_checkpoint_path(settings, run, removed) for removed in report.removed}
        removed_paths.discard(path)
    for step in [step for step, removed_row in rows.items() if removed_row.path in removed_paths]:
        removed_row = rows[step]
        if removed_row.name in used:
            removed_row.details = {**(removed_row.details or {}), REMOVED: True}
        elif sa.inspect(removed_row).persistent:
            session.delete(rows.pop(step))
        else:
            session.expunge(rows.pop(step))
    if new:
        for job in lifecycle.list_jobs(session, run):
            leases.note_progress(job)
    session.flush()
    return new


def list_checkpoint_paths(session: Session, run_id: str) -> set[str]:
    return set(session.scalars(sa.select(tables.Checkpoint.path).filter_by(run_id=run_id)))


def hold_checkpoint(settings: PlatformSettings, checkpoint: tables.Checkpoint) -> None:
    """Mark a checkpoint as in use: its trainer keeps it until `store_checkpoints` finds it unused."""
    folder = settings.located(checkpoint.path)
    if folder.parent.is_dir():
        hold_file(folder).touch(mode=0o600)


def _checkpoint_path(settings: PlatformSettings, run: tables.Run, name: str) -> str:
    folder = checkpoints_of(settings, run.id)
    path = folder / name if SENT.match(name) else Path(name)
    if path.resolve().parent != folder.resolve():
        raise ValidationError(f"{name} is not in the folder of this run's checkpoints", field="path")
    return settings.stored(folder / path.name)
