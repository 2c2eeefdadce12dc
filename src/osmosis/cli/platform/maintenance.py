"""Maintenance of this machine's platform, through its data folder and database, whether it runs or not. The platform is
imported where a command runs: its help waits for no database."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from osmosis._version import __version__
from osmosis.base.jsonable import JsonObject
from osmosis.cli.core.context import current
from osmosis.cli.core.render import draw_problems
from osmosis.cli.core.results import Column, DetailResult, ListResult, NextStep, OperationResult
from osmosis.cli.platform import process as local_platform
from osmosis.errors import Conflict, ValidationError
from osmosis.records.base import utc_now
from osmosis.workspace.doctor import check_machine

if TYPE_CHECKING:
    from osmosis.platform import Platform
    from osmosis.platform.settings import PlatformSettings

DatabaseUrl = Annotated[str | None, Option(help="The platform's SQLAlchemy URL [default: SQLite in its data folder]")]


def backup(
    file: Annotated[
        Path | None, Argument(help="A new file, or a folder for it; compressed when it ends in .gz")
    ] = None,
    with_master_key: Annotated[
        bool, Option(help="Include the key that decrypts the secrets: whoever has the file can read them")
    ] = False,
    database_url: DatabaseUrl = None,
) -> OperationResult:
    """Write everything the platform holds to one file: database, datasets, models, artifacts, repositories.

    The platform may be running: the file is a consistent snapshot. It does not contain the master key unless you ask
    for it; keep a copy of the key elsewhere, because without it every secret has to be set again.

    Example:
        osmosis platform backup
        osmosis platform backup /mnt/backups/
        osmosis platform backup platform.tar.gz --with-master-key
    """
    from osmosis.platform.backup import create as backups

    ctx = current()
    settings = settings_of(ctx.environ, database_url)
    target = ctx.path(file) if file else ctx.cwd
    if target.is_dir():
        target /= f"osmosis-{utc_now():%Y%m%d-%H%M%S}.tar"
    written = backups.create_backup(settings, target, with_master_key=with_master_key)
    facts = {"file": str(target), "bytes": written.size, "rows": written.rows, "files": written.files}
    key = {"master_key": with_master_key, "repositories": written.repositories}
    steps = [NextStep("put it back elsewhere", command=f"OSMOSIS_DATA_DIR=FOLDER osmosis platform restore {target}")]
    if not with_master_key:
        where = "OSMOSIS_MASTER_KEY" if settings.master_key.get_secret_value() else settings.data_dir / "master.key"
        steps.append(NextStep(f"keep the master key elsewhere: {where}"))
    message = f"{target} ({written.size / 1e6:.1f} MB, {written.rows} rows, {written.repositories} repositories)"
    return OperationResult("platform.backup", message, {**facts, **key}, next_steps=steps)


def restore(
    file: Annotated[Path, Argument(help="A file that `osmosis platform backup` wrote")],
    master_key: Annotated[
        Path | None, Option(help="The master.key of the platform that was backed up, when it is not in the file")
    ] = None,
    database_url: DatabaseUrl = None,
) -> OperationResult:
    """Restore a platform from a backup into an empty data folder. Damaged files and folders in use are refused.

    A backup from SQLite can be restored into PostgreSQL, and the other way round. A backup that an upgrade made before
    it changed the database is restored into its own data folder; what is there now is kept beside it.

    Example:
        OSMOSIS_DATA_DIR=/srv/osmosis osmosis platform restore platform.tar.gz
        osmosis platform restore platform.tar --master-key master.key
    """
    from osmosis.platform.backup import restore as restoring

    ctx = current()
    settings = settings_of(ctx.environ, database_url)
    done = restoring.restore(settings, ctx.path(file), master_key=ctx.path(master_key) if master_key else None)
    facts = {"data_dir": str(done.data_dir), "rows": done.rows, "files": done.files, "repositories": done.repositories}
    facts |= {"made_at": done.header.made_at, "version": done.header.version, "runs_in_flight": done.runs_in_flight}
    facts |= {"has_master_key": done.has_key, "put_aside": str(done.put_aside) if done.put_aside else None}
    steps = [NextStep("start it", command="osmosis platform start")]
    if not done.has_key:
        action = f"first put the master.key of that platform into {done.data_dir}; without it set the secrets again"
        steps.insert(0, NextStep(action))
    message = f"restored the platform of {done.header.made_at} into {done.data_dir}"
    return OperationResult("platform.restore", message, facts, next_steps=steps)


def gc(
    dry_run: Annotated[bool, Option(help="Show what would be removed, without removing it")] = False,
    database_url: DatabaseUrl = None,
) -> ListResult:
    """Remove what the platform no longer needs: files whose run, dataset or repository was deleted, and files older
    than the retention settings allow (OSMOSIS_KEEP_RUNS_DAYS and others, see docs/platform.md).

    The platform does this once a day by itself. Runs, their results and anything a live run uses are kept.

    Example:
        osmosis platform gc --dry-run
        osmosis platform gc
    """
    from osmosis.platform.maintenance import gc as sweeping

    ctx = current()
    platform = platform_of(settings_of(ctx.environ, database_url))
    try:
        waste_items = sweeping.sweep(platform, dry_run=dry_run)
    finally:
        platform.db.close()
    size = sum(waste.size for waste in waste_items if waste.kind not in sweeping.ROW_KINDS)
    items: list[JsonObject] = [
        {"kind": waste.kind, "what": waste.what, "why": waste.why, "size": waste.size} for waste in waste_items
    ]
    columns = [Column("kind", "Kind"), Column("what", "What"), Column("why", "Why"), Column("size", "Size", "right")]
    ctx.output.say(f"{len(waste_items)} items {'would be' if dry_run else 'were'} removed, {size / 1e6:.1f} MB")
    steps = [NextStep("remove them", command="osmosis platform gc")] if dry_run and waste_items else []
    extra = {"dry_run": dry_run, "bytes": size}
    return ListResult(items, columns, empty="nothing to remove", extra=extra, next_steps=steps)


def doctor(database_url: DatabaseUrl = None) -> DetailResult:
    """Check the platform in the data folder and this machine: process, port, permissions, database, clock, secrets,
    files, stale processes, git, uv, disk, sandbox. Exits with 1 when there is an error.

    Example:
        osmosis doctor --platform
        osmosis platform doctor --json
    """
    from osmosis.platform.maintenance import doctor as checking

    ctx = current()
    settings = settings_of(ctx.environ, database_url)
    problems = [*checking.find_problems(settings), *check_machine(ctx.environ)]
    problems.sort(key=lambda problem: ("error", "warning", "info").index(problem.severity))
    data: JsonObject = {
        "version": __version__,
        "data_dir": str(settings.data_dir),
        "valid": not any(problem.severity == "error" for problem in problems),
        "problems": [problem.to_dict() for problem in problems],
    }
    draw = partial(draw_problems, problems=problems)
    return DetailResult(data, title="Platform doctor", human=draw, exit_code=0 if data["valid"] else 1)


def platform_of(settings: "PlatformSettings") -> "Platform":
    from osmosis.platform import Platform, db

    if settings.database.startswith("sqlite") and not (settings.data_dir / "platform.db").is_file():
        hint = "OSMOSIS_DATA_DIR names the data folder; for PostgreSQL give --database-url"
        raise ValidationError(f"there is no platform.db in {settings.data_dir}", hint=hint)
    database = db.Database(settings.database)
    revision = database.revision()
    database.close()
    if revision != db.HEAD:
        message = f"the database is at revision {revision}, this version needs {db.HEAD}"
        raise Conflict(message, hint="stop the platform and start it with this version, which upgrades it")
    return Platform.open(settings)


def settings_of(environ: Mapping[str, str], database_url: str | None) -> "PlatformSettings":
    from osmosis.platform.settings import PlatformSettings

    values = {"data_dir": local_platform.data_dir_of(environ), "database_url": database_url}
    return PlatformSettings.from_environ(environ, **values)
