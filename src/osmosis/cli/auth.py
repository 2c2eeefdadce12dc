"""`osmosis login`, `logout` and `whoami`: a login replaces another only when it works, and logout revokes only its
own."""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from osmosis import errors
from osmosis.base.jsonable import JsonObject
from osmosis.base.net import is_loopback
from osmosis.cli.core import prompts
from osmosis.cli.core.app import new_app
from osmosis.cli.core.connect import login_of, usable
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.output import Mode
from osmosis.cli.core.prompts import open_page
from osmosis.cli.core.results import DetailResult, NextStep, OperationResult
from osmosis.cli.git_credential import answer
from osmosis.client import PlatformClient
from osmosis.client.credentials import CredentialStore, Login
from osmosis.client.http import check_ca_file
from osmosis.records.api.accounts import DeviceOffer, IssuedLogin, Verified

app = new_app(
    help="""Log in, log out, see who is logged in.

    Example:
        osmosis auth login --platform https://osmosis.example.com
        osmosis auth whoami
    """
)
LOGIN_LIMIT_S = 900.0


@app.command()
def login(
    force: Annotated[
        bool, Option("--force", "-f", help="Log in again; the old login stays until this one works")
    ] = False,
    no_browser: Annotated[bool, Option(help="Print the page's URL instead of opening it")] = False,
    token: Annotated[str | None, Option(help="Log in with this token; - reads it from stdin")] = None,
    store: Annotated[Literal["auto", "file", "keyring"], Option(help="Where the token goes")] = "auto",
    ca_file: Annotated[Path | None, Option(help="CA certificates to trust (PEM); stored with the login")] = None,
) -> OperationResult:
    """Log in to the platform.

    On the machine where the platform was started, no browser is needed. With --workspace, the login is for that
    workspace alone, beside the one for all others. Use --ca-file, or set OSMOSIS_CA_FILE, when a private certificate
    authority signed the platform's certificate.

    Example:
        osmosis login
        osmosis login --workspace demo --token - < demo.txt
        osmosis login --platform https://osmosis.example.com --no-browser
        osmosis login --token - < token.txt
        osmosis login --platform https://osmosis.lan --ca-file team-ca.pem
    """
    ctx = current()
    url = ctx.platform_url
    if ctx.environ.get("OSMOSIS_TOKEN"):
        raise errors.Conflict("OSMOSIS_TOKEN is set and overrides any login", hint="unset OSMOSIS_TOKEN")
    credentials = CredentialStore(ctx.environ)
    try:
        old = credentials.stored(url, ctx.options.workspace)
    except errors.OsmosisError:
        old = None  # a new login repairs the store
    trusted = check_ca_file(ctx.path(ca_file), "--ca-file") if ca_file else credentials.ca_file(url)
    if not force and token is None and old is not None and _still_good(ctx, old, trusted):
        if trusted != (old.ca_file or ""):
            old, _ = credentials.save(replace(old, ca_file=trusted), store=old.store)
        return _logged_in(old, credentials, already=True)
    if token is not None:
        token = ctx.stdin.readline().strip() if token == "-" else token
        if not token:
            raise errors.ValidationError("the token is empty", hint="osmosis login --token - < token.txt")
        with PlatformClient(url, token, warn=ctx.output.warn, ca_file=trusted) as client:
            fresh = _login(url, token, client.accounts.verify(), "token")
    elif is_loopback(url) and (answer := _by_bootstrap(ctx, url)):
        fresh = _login(url, answer.token, answer, "bootstrap")
    else:
        issued = _by_device(ctx, url, trusted, no_browser=no_browser)
        fresh = _login(url, issued.token, issued, "device")
    fresh = _with_workspaces(ctx, fresh, trusted)
    active = old.active_workspace if old else None
    saved, backup = credentials.save(replace(fresh, active_workspace=active, ca_file=trusted or None), store=store)
    if backup:
        message = f"the old credentials file could not be read and was kept as {backup}"
        ctx.output.warn("CREDENTIALS_PARSE_FAILED", message)
    if old and old.token != saved.token:
        _revoke(ctx, old)
    return _logged_in(saved, credentials, already=False)


@app.command()
def logout(everywhere: Annotated[bool, Option("--all", help="Log out of every platform")] = False) -> OperationResult:
    """Log out: revoke the token that `osmosis login` created and forget it.

    Asks which login when several are stored; with --workspace, it is the one of that workspace. A token given with
    --token is forgotten but not revoked. Tokens made with `osmosis token create` keep working.

    Example:
        osmosis logout
        osmosis logout --workspace demo
        osmosis logout --all --yes
    """
    ctx = current()
    credentials = CredentialStore(ctx.environ)
    chosen = _choose_logins(ctx, credentials, everywhere=everywhere)
    note = " (OSMOSIS_TOKEN is still set and is used)" if ctx.environ.get("OSMOSIS_TOKEN") else ""
    if not chosen:
        return OperationResult("auth.logout", f"not logged in{note}", {"platforms": []})
    titles = ", ".join(_describe(login) for login in chosen)
    prompts.agree(ctx, f"Log out of {titles}?", "auth.logout", platforms=[])
    outcome = []
    for url, workspace in chosen:
        login = credentials.remove(url, workspace)
        revoked = _revoke(ctx, login) if login else False
        outcome.append({"platform_url": url, "workspace": workspace, "revoked": revoked})
    return OperationResult("auth.logout", f"logged out of {titles}{note}", {"platforms": outcome})


def _describe(login: tuple[str, str | None]) -> str:
    url, workspace = login
    return f"workspace {workspace} at {url}" if workspace else url


def _choose_logins(ctx: AppContext, credentials: CredentialStore, *, everywhere: bool) -> list[tuple[str, str | None]]:
    logins = credentials.logins()
    if everywhere:
        return logins
    if workspace := ctx.options.workspace:
        return [login for login in logins if login == (ctx.platform_url, workspace)]
    at_platform = [login for login in logins if login[0] == ctx.platform_url]
    if len(logins) < 2 or ctx.options.yes or not ctx.interactive:
        return at_platform
    titles = enumerate(_describe(login) for login in logins)
    choices = [*((str(index), title) for index, title in titles), ("all", "all of them")]
    answer = prompts.choose(ctx, "Log out of which?", choices, flag="--workspace NAME, --all or --yes")
    return logins if answer == "all" else [logins[int(answer)]]


@app.command()
def whoami() -> DetailResult:
    """Show who is logged in, and where, and where the login is stored.

    Example:
        osmosis whoami
        osmosis whoami --json
    """
    ctx = current()
    url = ctx.platform_url
    credentials = CredentialStore(ctx.environ)
    login = usable(login_of(ctx), url)
    checked, workspace, mine = _verified(ctx, login)
    reachable = mine is not None
    account = {
        "email": checked.user.get("email"),
        "name": checked.user.get("name"),
        "expires_at": checked.expires_at,
        "platform_url": url,
        "source": login.store,
        "effective_source": login.store,
        "persistent_login": login.store != "environment",
        "token_id": checked.token_id,
        "login_workspace": login.workspace,
    }
    where = {"file": str(credentials.path), "keyring": "the OS keyring", "environment": "OSMOSIS_TOKEN"}[login.store]
    others = sorted({other for other, _ in credentials.logins()} - {url})
    extra = {"stored_in": where, "verified": reachable, "other_platforms": others or None}
    data = {"account": account, **account, "workspace": workspace, "workspaces": mine or [], **extra}
    brief = {"name": account["name"], "email": account["email"], "platform": url}
    listed = ", ".join(f"{row['name']} ({row['role']})" for row in mine or []) or "none"
    brief |= {
        "workspace": f"{workspace.get('name')} ({workspace.get('role')})" if workspace else None,
        "workspaces": listed if reachable else None,
        "expires at": checked.expires_at,
        "kept in": where,
        "also logged in to": others,
    }
    return DetailResult(data, brief=brief)


@app.command("git-credential", hidden=True)
def git_credential(operation: Annotated[str, Argument(help="get, store or erase, as git says it")]) -> None:
    """Answer git's credential requests, only for platforms you are logged in to.

    Example:
        git config credential.http://127.0.0.1:7575.helper "!osmosis auth git-credential"
    """
    ctx = current()
    answer(operation, ctx.stdin, ctx.output.stdout, ctx.output.stderr, ctx.environ)


def _still_good(ctx: AppContext, stored: Login, trusted: str) -> bool:
    if stored.expired:
        return False
    try:
        with PlatformClient(stored.url, stored.token, warn=ctx.output.warn, ca_file=trusted) as client:
            client.accounts.verify()
    except errors.AuthRequired:
        return False
    return True


def _with_workspaces(ctx: AppContext, fresh: Login, trusted: str) -> Login:
    with PlatformClient(fresh.url, fresh.token, warn=ctx.output.warn, ca_file=trusted) as client:
        rows = client.workspaces.list()
    name = ctx.options.workspace
    if not name:
        return replace(fresh, workspaces=[{"id": row.id, "name": row.name, "role": row.role} for row in rows])
    row = next((row for row in rows if row.name == name), None)
    if row is None:
        _revoke(ctx, fresh)
        hint = f"its workspaces are {', '.join(row.name for row in rows)}" if rows else "osmosis login"
        raise errors.NotFound(f"{fresh.user.get('email') or 'this login'} is in no workspace {name}", hint=hint)
    organization: dict[str, object] = {"id": row.id, "name": row.name, "role": row.role, "identity": row.identity}
    return replace(fresh, organization=organization)


def _by_bootstrap(ctx: AppContext, url: str) -> IssuedLogin | None:
    # It brings ctypes, which only a login on this machine needs.
    from osmosis.cli.platform.process import data_dir_of, find

    data_dir = data_dir_of(ctx.environ)
    running = find(data_dir)
    if running is None or running.url != url:
        return None
    try:
        token = (data_dir / "bootstrap.token").read_text().strip()
    except OSError:
        return None
    with PlatformClient(url, token, warn=ctx.output.warn) as client:
        try:
            return client.accounts.bootstrap(_device_name())
        except (errors.AuthRequired, errors.NotFound):
            return None


def _by_device(ctx: AppContext, url: str, trusted: str, *, no_browser: bool) -> IssuedLogin:
    if ctx.mode is not Mode.RICH:
        message = "this login has to be approved in a browser"
        raise errors.InteractiveRequired(message, hint="osmosis login --token TOKEN, or OSMOSIS_TOKEN")
    with PlatformClient(url, None, warn=ctx.output.warn, ca_file=trusted) as client:
        offer = client.accounts.authorize(_device_name())
        ctx.output.say(f"Open {offer.page}")
        ctx.output.say(f"and check that the page shows the code {offer.user_code}", style="bold")
        if not no_browser:
            open_page(ctx, offer.page)
        ctx.output.say("waiting for approval (Ctrl-C to cancel) ...", style="dim")
        return _poll(client, offer)


def _poll(client: PlatformClient, offer: DeviceOffer) -> IssuedLogin:
    interval = float(offer.interval)
    deadline = time.monotonic() + min(LOGIN_LIMIT_S, offer.expires_in)
    while time.monotonic() < deadline:
        time.sleep(interval)
        try:
            return client.accounts.poll(offer.device_code)
        except errors.NetworkError:
            continue  # a restart of the platform must not end the login
        except errors.OsmosisError as error:
            codes = {error.message, str(error.details.get("platform_code")), str(error.details.get("error_code"))}
            if "authorization_pending" in codes:
                continue
            if "slow_down" in codes:
                interval = min(interval + 5, 30.0)
                continue
            if "access_denied" in codes:
                raise errors.AuthRequired("the login was denied in the browser", hint="osmosis login") from error
            if "expired_token" in codes:
                break
            raise
    raise errors.AuthRequired("the login was not approved in time", hint="osmosis login")


def _login(url: str, token: str, answer: Verified | IssuedLogin, source: str) -> Login:
    return Login(url, token, answer.user.to_dict(), answer.token_id, answer.expires_at, source=source)


def _logged_in(saved: Login, credentials: CredentialStore, *, already: bool) -> OperationResult:
    person = saved.user.get("name") or saved.user.get("email") or "you"
    where = str(credentials.path) if saved.store == "file" else "the OS keyring"
    state = "already logged in" if already else "logged in"
    resource = {
        "platform_url": saved.url,
        **{name: getattr(saved, name) for name in ("user", "expires_at", "token_id", "source", "store")},
        "stored_in": where,
        "already": already,
        "workspace": saved.workspace,
        "workspaces": saved.workspaces,
    }
    message = f"{state} at {_describe((saved.url, saved.workspace))} as {person}; the login is stored in {where}"
    has_workspace = saved.active_workspace or saved.workspaces or saved.workspace
    steps = [] if already or has_workspace else [NextStep("create a workspace", command="osmosis init NAME")]
    return OperationResult("auth.login", message, resource, next_steps=steps)


def _verified(ctx: AppContext, login: Login) -> tuple[Login, JsonObject | None, list[JsonObject] | None]:
    """Return the login as the platform sees it, from plain JSON: records would halve the speed. None: unreachable."""
    try:
        client = ctx.client()
        try:
            answer = client.call("GET", "verify")
        except (errors.AuthRequired, errors.NetworkError):
            raise
        except errors.OsmosisError:  # the workspace is not this person's: who one is can still be said
            answer = client.call("GET", "verify", scoped=False)
        rows = client.call("GET", "workspaces", scoped=False).get("workspaces") or []
    except errors.NetworkError as error:
        ctx.output.warn("NETWORK", f"{error.message}; shown as stored")
        return login, None, None
    facts = {key: answer.get(key) or getattr(login, key) for key in ("user", "expires_at", "token_id")}
    mine = [{key: row.get(key) for key in ("id", "name", "role")} for row in rows]
    return replace(login, **facts), answer.get("workspace"), mine


def _revoke(ctx: AppContext, old: Login) -> bool:
    if old.source not in ("device", "bootstrap") or not old.token_id or not old.token:
        return False
    try:
        trusted = check_ca_file(old.ca_file, f"the login to {old.url}") if old.ca_file else ""
        with PlatformClient(old.url, old.token, ca_file=trusted) as client:
            client.accounts.revoke(old.token_id, logout=True)
        return True
    except errors.AuthRequired:
        return True  # it was gone already
    except errors.OsmosisError as error:
        ctx.output.warn("TOKEN_REVOKE_FAILED", f"{old.url} could not revoke the token: {error.message}")
        return False


def _device_name() -> str:
    import socket

    return socket.gethostname() or sys.platform
