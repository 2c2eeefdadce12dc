"""The model store of a workspace: base models, and where a model that a config names is found.

A base model arrives as files, each in parts and with its checksum; one that was cut off goes on where it stopped. It
is ready when the files together are a model (`base.model_folder`). A trained model is a checkpoint of a run, its
folder stays with the run. Loads no model and knows no library that could.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.base import model_folder
from osmosis.errors import Conflict, NotFound, ValidationError
from osmosis.platform import Platform, tables
from osmosis.platform.db import count_of
from osmosis.platform.objects.store import Objects
from osmosis.platform.settings import PlatformSettings
from osmosis.records.base import utc_now
from osmosis.records.contract.body import moment
from osmosis.records.contract.model_bodies import AnnouncedFile, ModelFile
from osmosis.records.contract.training_bodies import ModelRow
from osmosis.records.plan import PLATFORM_MODEL
from osmosis.records.run_status import RunStatus

from . import quotas

READY, UPLOADING = "ready", "uploading"
MAX_NAME = 128
OPEN = (RunStatus.PENDING.value, RunStatus.RUNNING.value)


def folder_of(settings: PlatformSettings, model_id: str) -> Path:
    return settings.models_dir / "base" / model_id


def parts_key(model_id: str, number: int) -> str:
    """Where the parts of one file arrive."""
    return f"{uploads_key(model_id)}{number}/"


def uploads_key(model_id: str) -> str:
    """Where the parts of all its files arrive."""
    return f"models/uploads/{model_id}/"


def key_of(model_id: str) -> str:
    """Where the files of a base model are."""
    return f"models/base/{model_id}/"


def checkpoints_of(settings: PlatformSettings, run_id: str) -> Path:
    """Where a training run keeps its checkpoints, a folder each."""
    return settings.models_dir / "runs" / run_id


def announce(
    session: Session,
    platform: Platform,
    workspace: tables.Workspace,
    user: tables.User,
    name: str,
    files: Sequence[AnnouncedFile],
) -> tuple[tables.BaseModel, list[str]]:
    """A model that waits for its files, or the one of the same files that waits or is ready already; and the keys of
    what came of other files under this name, to be deleted after the session (`delete_files`)."""
    check_name(name)
    _check(platform, files)
    wanted = [file.to_dict() for file in sorted(files, key=lambda file: file.path)]
    query = sa.select(tables.BaseModel).where(
        tables.BaseModel.workspace_id == workspace.id, tables.BaseModel.name == name
    )
    model = session.scalars(query.with_for_update()).first()
    if model is not None and model.files == wanted:
        return model, []
    if model is not None and model.status == READY:
        raise Conflict(
            f"a base model named {name!r} already exists, with other files",
            hint=f"osmosis model delete {name}, or upload it under another name: --name NAME",
        )
    quotas.check_bytes(session, workspace, sum(file.size for file in files))
    left = [] if model is None else [key_of(model.id), uploads_key(model.id)]
    if model is not None:  # its successor has another id, so that nothing of it is in the way
        session.delete(model)
        session.flush()
    model = tables.BaseModel(workspace_id=workspace.id, creator_id=user.id, name=name)
    session.add(model)
    model.status, model.files = UPLOADING, wanted
    model.size, model.updated_at = sum(file.size for file in files), utc_now()
    session.flush()
    return model, left


def check_name(name: str) -> None:
    """ValidationError for what is no name of a model."""
    if not name or len(name) > MAX_NAME or not all(c.isalnum() or c in "._-" for c in name) or not name[0].isalnum():
        what = f"{name!r} is not a name for a model: use letters, digits, '.', '_' and '-', at most {MAX_NAME}"
        raise ValidationError(what, hint="--name NAME", field="name")


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
        what = f"the model has {size / 1e9:.1f} GB, and the platform's disk has {free / 1e9:.1f} GB free"
        raise ValidationError(what, hint="free up space there, or move its data folder: OSMOSIS_DATA_DIR")


def find_base(session: Session, workspace: tables.Workspace, name_or_id: str) -> tables.BaseModel:
    """By name first, then by id. NotFound otherwise."""
    for column in (tables.BaseModel.name, tables.BaseModel.id):
        query = sa.select(tables.BaseModel).where(tables.BaseModel.workspace_id == workspace.id, column == name_or_id)
        if (found := session.scalars(query).first()) is not None:
            return found
    raise NotFound(f"no base model named {name_or_id!r} on this platform", hint="osmosis model list --type base")


def files_of(objects: Objects, model: tables.BaseModel) -> list[ModelFile]:
    """The files of a model, each with the numbers of the parts that are here; all of them once it is whole. Not in a
    session: it asks the store."""
    whole, parts = set[str](), dict[str, list[int]]()
    if model.status != READY:
        whole = {one.key.removeprefix(key_of(model.id)) for one in objects.list(key_of(model.id))}
        for one in objects.list(uploads_key(model.id)):
            number, _, part = one.key.removeprefix(uploads_key(model.id)).partition("/")
            if part.isdigit():
                parts.setdefault(number, []).append(int(part))
    found = []
    for position, file in enumerate(model.files):
        path = AnnouncedFile.model_validate(file)
        state = "uploaded" if model.status == READY or path.path in whole else "pending"
        here = sorted(parts.get(str(position), ()))
        found.append(ModelFile(path=path.path, size=path.size, sha256=path.sha256, state=state, parts=here))
    return found


def number_of(model: tables.BaseModel, path: str) -> int:
    """The place of a file among the announced ones."""
    for number, file in enumerate(model.files):
        if file["path"] == path:
            return number
    raise NotFound(f"{path} is not a file of model {model.name!r}", field="path")


def ready(platform: Platform, model_id: str) -> None:
    """Check the whole model; it is ready then. ValidationError says what is wrong with it, and it stays as it is."""
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


def delete_base(session: Session, model: tables.BaseModel) -> None:
    """Remove the row; its folder follows. Conflict while a run that is not over starts from it."""
    refuse_in_use(session, model.workspace_id, model.name)
    session.delete(model)


def refuse_in_use(session: Session, workspace_id: str, name: str) -> None:
    """Conflict while a run that is not over uses a model of this name."""
    used = [name, f"{PLATFORM_MODEL}{name}"]
    of_it = trained(workspace_id).where(tables.Checkpoint.base_model == name).with_only_columns(tables.Checkpoint.name)
    deployed = sa.and_(tables.Run.kind == "serving", tables.Run.name.in_(of_it))
    query = sa.select(tables.Run).where(
        tables.Run.workspace_id == workspace_id,
        tables.Run.status.in_(OPEN),
        sa.or_(tables.Run.model_path.in_(used), deployed),
    )
    if (run := session.scalars(query.limit(1)).first()) is not None:
        if run.kind == "serving":
            what = "it is" if run.name == name else f"its adapter {run.name!r} is"
            hint = f"osmosis model undeploy {run.name}"
            raise Conflict(f"model {name!r} cannot be deleted: {what} deployed", hint=hint)
        raise Conflict(f"model {name!r} is in use by run {run.name!r}", hint="wait for the run, or stop it first")


# --- trained models ---------------------------------------------------------------------------------------------


def trained(workspace_id: str) -> sa.Select[tables.Checkpoint]:
    """The checkpoints of a workspace's runs."""
    return (
        sa.select(tables.Checkpoint)
        .join(tables.Run, tables.Run.id == tables.Checkpoint.run_id)
        .where(tables.Run.workspace_id == workspace_id)
    )


def find_trained(session: Session, workspace_id: str, name: str) -> tables.Checkpoint:
    """By name, then by id; a training run's name is its best checkpoint, else its last. NotFound otherwise."""
    wanted = sa.or_(tables.Checkpoint.name == name, tables.Checkpoint.id == name)
    row: tables.Checkpoint | None = session.scalars(trained(workspace_id).where(wanted)).first()
    if row is None:
        of_run = trained(workspace_id).where(tables.Run.name == name, tables.Run.kind == "training")
        best = of_run.order_by(tables.Checkpoint.reward.desc().nulls_last(), tables.Checkpoint.step.desc())
        row = session.scalars(best).first()
    if row is None:
        raise NotFound(f"no model named {name!r}", hint="osmosis model list")
    return row


def adapter_of(settings: PlatformSettings, checkpoint: tables.Checkpoint) -> Path:
    """The folder with the adapter of a checkpoint, which is fetched there when objects are elsewhere. Conflict when it
    was removed."""
    folder = settings.located(checkpoint.path)
    if (folder / TINKER).is_file():
        what = f"model {checkpoint.name!r} is on the Tinker server that trained it: {_weights_there(folder)}"
        raise Conflict(what, hint="ask that server for it, under this name")
    if not settings.objects and not (folder / ADAPTER).is_file():
        what = f"the files of model {checkpoint.name!r} are gone: a newer checkpoint took their place"
        raise Conflict(what, hint="osmosis model list; [checkpoints] keep = N keeps more of them")
    return folder


ADAPTER = "adapter_model.safetensors"
TINKER = "tinker.json"


def _weights_there(folder: Path) -> str:
    try:
        return str(json.loads((folder / TINKER).read_text("utf-8"))["weights"])
    except (OSError, ValueError, KeyError, TypeError):
        return "its name there is not known"


# --- what an evaluation asks -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Served:
    """A model of the platform, as a job loads it."""

    base: str
    """Folder or hub name of the base model."""
    adapter: str = ""
    """Folder of the adapter; empty for a base model."""
    tokenizer: str = ""
    """Folder or hub name, where the model itself is on an engine elsewhere."""


def served(session: Session, settings: PlatformSettings, workspace_id: str, wanted: str) -> Served:
    """What `osmosis/NAME` stands for: a base model, a checkpoint, or a training run's best one; a NAME with a slash is
    a hub name or a folder, as training configs have them. ValidationError with an issue when there is none."""
    name = wanted.removeprefix(PLATFORM_MODEL)
    if "/" in name:
        return Served(resolve(session, settings, workspace_id, name))
    same = tables.BaseModel.workspace_id == workspace_id, tables.BaseModel.name == name
    if count_of(session, sa.select(tables.BaseModel).where(*same)):
        return Served(resolve(session, settings, workspace_id, name))
    try:
        checkpoint = find_trained(session, workspace_id, name)
        folder = adapter_of(settings, checkpoint)
    except (NotFound, Conflict) as error:
        raise _unusable(error.message, error.hint or "osmosis model list") from None
    run = session.get_one(tables.Run, checkpoint.run_id)
    return Served(resolve(session, settings, workspace_id, run.model_path), str(folder))


# --- what a config names ----------------------------------------------------------------------------------------


def resolve(
    session: Session, settings: PlatformSettings, workspace_id: str, wanted: str, *, weights: bool = True
) -> str:
    """The base model, or without `weights` the tokenizer, that a training config names: a model of the store, a folder
    on this machine where the operator allows that, else a hub name, which the job looks up. ValidationError says why it
    cannot be used."""
    query = sa.select(tables.BaseModel).where(
        tables.BaseModel.workspace_id == workspace_id, tables.BaseModel.name == wanted
    )
    if (model := session.scalars(query).first()) is not None:
        if model.status != READY:
            raise _unusable(f"base model {wanted!r} is not complete", f"osmosis model upload FOLDER --name {wanted}")
        return str(folder_of(settings, model.id))
    if wanted.startswith(("/", "./", "../", "~")):
        return _folder(settings, wanted, weights=weights)
    if wanted.count("/") != 1:
        near = f"no base model named {wanted!r} on this platform, and it is not a hub name (OWNER/NAME)"
        raise _unusable(near, f"osmosis model list --type base, or: osmosis model upload FOLDER --name {wanted}")
    return wanted


def _folder(settings: PlatformSettings, wanted: str, *, weights: bool) -> str:
    allowed = [Path(part).expanduser().resolve() for part in settings.model_folders.split(":") if part]
    folder = Path(wanted).expanduser()
    places = [folder] if folder.is_absolute() else [root / folder for root in allowed]
    for place in places:
        real = place.resolve()
        if real.is_dir() and any(real.is_relative_to(root) for root in allowed):
            (model_folder.check_model if weights else model_folder.check_tokenizer)(real)
            return str(real)
    if not allowed:
        fix = "osmosis model upload FOLDER, then name the model; or let the operator set OSMOSIS_MODEL_FOLDERS"
        raise _unusable("this platform takes no folders of its machine as base models", fix)
    what = f"there is no folder {wanted} below those that this platform takes base models from"
    raise _unusable(what, "osmosis model upload FOLDER, then name the model")


def _unusable(message: str, hint: str) -> ValidationError:
    issue = {"key": "experiment.model_path", "message": message, "hint": hint}
    return ValidationError(message, hint=hint, issues=[issue])


def delete_files(platform: Platform, *keys: str) -> None:
    """What is below these keys, of models that are deleted; nothing outside of the models is ever touched."""
    for key in keys:
        if key.startswith("models/"):
            platform.objects.delete(key.rstrip("/") + "/")


def delete_trained(session: Session, checkpoint: tables.Checkpoint) -> None:
    """Remove the row; its folder follows. Conflict while its run, or one that starts from it, is not over."""
    run = session.get_one(tables.Run, checkpoint.run_id)
    if run.status in OPEN:
        raise Conflict(f"run {run.name!r} is {run.status} and may resume from it", hint="wait for the run, or stop it")
    refuse_in_use(session, run.workspace_id, checkpoint.name)
    session.delete(checkpoint)


# --- as clients read them ---------------------------------------------------------------------------------------


def base_row(model: tables.BaseModel) -> ModelRow:
    """A base model."""
    return ModelRow(
        id=model.id,
        model_name=model.name,
        base_model=model.name,
        status=model.status,
        architecture=model.architecture,
        parameters=model.parameters,
        context_window=model.context_length,
        chat_template=model.chat_template,
        size=model.size,
        created_at=moment(model.created_at),
        updated_at=moment(model.updated_at),
    )


def trained_row(checkpoint: tables.Checkpoint, run: tables.Run) -> ModelRow:
    """A trained model."""
    return ModelRow(
        id=checkpoint.id,
        model_name=checkpoint.name,
        base_model=checkpoint.base_model,
        training_run_name=run.name,
        checkpoint_step=checkpoint.step,
        reward=checkpoint.reward,
        status=checkpoint.status,
        created_at=moment(checkpoint.created_at),
    )
