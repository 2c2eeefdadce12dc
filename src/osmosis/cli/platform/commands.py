"""`osmosis platform`: the platform of this machine as a background process; and its maintenance, through its
data folder and database. `osmosis.platform` is imported where a command runs: its help waits for no database."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from osmosis._version import __version__
from osmosis.base.jsonable import JsonObject
from osmosis.cli.core.app import takes
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.prompts import open_page
from osmosis.cli.core.render import draw_problems
from osmosis.cli.core.results import Column, DetailResult, ListResult, NextStep, OperationResult, when
from osmosis.cli.platform import process as local_platform
from osmosis.cli.platform.process import Running, StartPlan
from osmosis.cli.worker import AdvertiseUrl, GateListen, RequireSandbox, SandboxAllow
from osmosis.client.credentials import CredentialStore
from osmosis.errors import Conflict, NotFound, UsageError, ValidationError
from osmosis.records.base import utc_now
from osmosis.records.sandbox import LIMITS
from osmosis.sandbox import probe
from osmosis.workspace.doctor import check_machine, training

_PLANNED = ("host", "port", "database_url")  # Flags of `StartPlan`; the others are those of the process itself


@dataclass(frozen=True)
class StartFlags:
    port: Annotated[int | None, Option(min=0, max=65535, help="Port [default: 7575, or a free one]")] = None
    host: Annotated[str, Option(help="Address to listen on")] = "127.0.0.1"
    public_url: Annotated[str | None, Option(help="URL that clients use, when it differs from host and port")] = None
    allowed_host: Annotated[
        list[str] | None,
        Option(help="Host name that requests may carry, such as osmosis.lan or *.example.com; may be repeated"),
    ] = None
    database_url: Annotated[str | None, Option(help="SQLAlchemy URL [default: SQLite in the data folder]")] = None
    insecure_http: Annotated[bool, Option(help="Listen beyond this machine without https: tokens can be read")] = False
    remote_allow: Annotated[
        list[str] | None,
        Option(help="Host of git remotes that may be reached at a private address; may be repeated", hidden=True),
    ] = None
    advertise_url: AdvertiseUrl = None
    gate_listen: GateListen = None
    max_jobs: Annotated[int | None, Option(min=1, help="Maximum number of jobs that run at once")] = None
    no_worker: Annotated[bool, Option(help="Run no jobs here: workers elsewhere do (osmosis worker start)")] = False
    require_sandbox: RequireSandbox = False
    no_sandbox: Annotated[bool, Option(help="Run rollouts with the rights of the platform's user")] = False
    sandbox_allow: SandboxAllow = None
    sandbox_limit: Annotated[
        list[str] | None,
        Option(
            help=f"NAME=VALUE: what a rollout server may use ({', '.join(LIMITS)}); may be repeated",
            metavar="NAME=VALUE",
            hidden=True,
        ),
    ] = None


@takes(StartFlags)
def start(flags: StartFlags) -> OperationResult:
    """Start the platform in the background. Does nothing if it is already running.

    Options for teams and other machines are in docs/platform.md.

    Example:
        osmosis platform start
        osmosis platform start --port 8080
    """
    ctx = current()
    data_dir = local_platform.data_dir_of(ctx.environ)
    if flags.require_sandbox and flags.no_sandbox:
        raise UsageError("--require-sandbox and --no-sandbox contradict each other", hint="give one of them")
    words = []
    for name, value in vars(flags).items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words += [flag] if value else []
        elif value is not None and name not in _PLANNED:
            words += [f"{flag}={each}" for each in (value if isinstance(value, list) else [value])]
    plan = StartPlan(data_dir, flags.host, flags.port, flags.database_url, words)
    running, started = local_platform.start(plan, ctx.environ, say=ctx.output.say)
    ctx.output.say(f"rollouts run at {'level 0 (--no-sandbox)' if flags.no_sandbox else probe().describe}")
    if not started and flags.port not in (None, 0, running.port):
        message = f"the platform is already running at {running.url}, not on port {flags.port}"
        raise Conflict(message, hint=f"osmosis platform stop, then: osmosis platform start --port {flags.port}")
    login = [] if CredentialStore(ctx.environ).find(running.url) else [NextStep("log in", command="osmosis login")]
    message = f"platform {'started' if started else 'already running'} at {running.url}"
    resource = {**_facts(running, plan.data_dir), "started": started}
    steps = [*login, NextStep("open", url=running.url)]
    return OperationResult("platform.start", message, resource, next_steps=steps)


def status() -> DetailResult:
    """Show whether the platform is running, where and since when. Exits with 1 when it is not.

    Example:
        osmosis platform status
    """
    ctx = current()
    if ctx.options.platform:
        url = ctx.platform_url
        alive = local_platform.healthy(url)
        return DetailResult({"running": alive, "url": url}, title="platform", exit_code=0 if alive else 1)
    data_dir = local_platform.data_dir_of(ctx.environ)
    running = local_platform.find(data_dir)
    if running is None:
        data, steps = {"running": False, "data_dir": str(data_dir)}, [NextStep("start it", "osmosis platform start")]
        return DetailResult(data, title="platform", exit_code=1, next_steps=steps)
    answers = local_platform.healthy(running.url)
    facts = {"running": True, "answers": answers, **_facts(running, data_dir), "training": training(ctx.environ)[1]}
    facts["sandbox"] = probe().describe
    return DetailResult(facts, title="platform", exit_code=0 if answers else 1)


def stop(
    force: Annotated[bool, Option(help="Stop at once; runs continue at its next start")] = False,
) -> OperationResult:
    """Stop the platform gracefully. Unfinished runs continue when it starts again.

    Example:
        osmosis platform stop
    """
    stopped = local_platform.stop(local_platform.data_dir_of(current().environ), force=force)
    if stopped is None:
        return OperationResult("platform.stop", "the platform is not running", {"stopped": False})
    return OperationResult("platform.stop", f"platform stopped ({stopped.url})", {"stopped": True, "pid": stopped.pid})


def open_pages(no_browser: Annotated[bool, Option(help="Print the link, do not open it")] = False) -> OperationResult:
    """Open the platform's pages in a browser, logged in with a one-time link.

    Example:
        osmosis platform open
        osmosis platform open --no-browser
    """
    ctx = current()
    link = ctx.client(scoped=False).accounts.browser_link()
    url = link.url
    opened = not no_browser and open_page(ctx, url)
    message = f"the link works once and expires in {link.expires_in // 60} minutes"
    steps = [NextStep("opened" if opened else "open", url=url)]
    return OperationResult("platform.open", message, {"url": url, "opened": opened}, next_steps=steps)


def logs(
    follow: Annotated[bool, Option("--follow", "-f", help="Follow the log until Ctrl-C")] = False,
    lines: Annotated[int, Option("--lines", "-n", min=1, help="Show the last N lines")] = 50,
) -> ListResult | None:
    """Show the platform's log.

    Example:
        osmosis platform logs -f
    """
    ctx = current()
    path = local_platform.log_file(local_platform.data_dir_of(ctx.environ))
    if not path.is_file():
        raise NotFound(f"no log yet at {path}", hint="osmosis platform start")

    with path.open(errors="replace") as file:
        tail = [line.rstrip("\n") for line in deque(file, maxlen=lines)]
    if not follow:
        items = [{"line": line} for line in tail]
        return ListResult(
            items, [Column("line", "Line")], human=lambda console: _print(ctx, tail), empty="the log is empty"
        )
    _print(ctx, tail)
    _follow(ctx, path)
    return None


def _facts(running: Running, data_dir: Path) -> dict[str, object]:
    facts = {name: getattr(running, name) for name in ("url", "pid", "port", "version", "started_at")}
    return {**facts, "data_dir": str(data_dir), "log": str(local_platform.log_file(data_dir))}


def _print(ctx: AppContext, lines: list[str]) -> None:
    for line in lines:
        ctx.output.stream({"line": line}, line)


def _follow(ctx: AppContext, path: Path) -> None:
    file = path.open(errors="replace")
    file.seek(0, 2)
    try:
        while True:
            if line := file.readline():
                _print(ctx, [line.rstrip("\n")])
                continue
            time.sleep(0.3)
            try:
                rotated = path.stat().st_size < file.tell()
            except FileNotFoundError:
                continue
            if rotated:
                file.close()
                file = path.open(errors="replace")
    finally:
        file.close()


if TYPE_CHECKING:
    from osmosis.platform import Platform
    from osmosis.platform.settings import PlatformSettings

DatabaseUrl = Annotated[str | None, Option(help="The platform's SQLAlchemy URL [default: SQLite in its data folder]")]


def backup(
    file: Annotated[Path | None, Argument(help="A new file, or a folder for it; .gz compresses it")] = None,
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
    message = f"{target} ({written.size / 1e6:.1f} MB, {written.rows} rows, repositories: {written.repositories})"
    return OperationResult("platform.backup", message, {**facts, **key}, next_steps=steps)


def restore(
    file: Annotated[Path, Argument(help="A file that `osmosis platform backup` wrote")],
    master_key: Annotated[Path | None, Option(help="The master.key of that platform, if it is not in the file")] = None,
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
    own_folder = f"OSMOSIS_DATA_DIR={done.data_dir} " if "OSMOSIS_DATA_DIR" in ctx.environ else ""
    steps = [NextStep("start it", command=f"{own_folder}osmosis platform start")]
    if not done.has_key:
        action = f"first put the master.key of that platform into {done.data_dir}; without it set the secrets again"
        steps.insert(0, NextStep(action))
    message = f"restored the platform of {when(done.header.made_at)} into {done.data_dir}"
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
