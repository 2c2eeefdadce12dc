"""Messages of `[notify]`, stored in the transaction of what they are about. A hook's URL is a secret; it gets a POST at
an address that was checked first, through no proxy and no redirect."""

import base64
import hashlib
import hmac
import html
import ipaddress
import logging
import smtplib
import socket
import ssl
from datetime import timedelta
from email.message import EmailMessage
from urllib.parse import unquote, urlsplit

import httpx
import orjson
import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.base.net import backoff_delay, embedded_address, is_http, is_loopback, is_public
from osmosis.errors import NetworkError, OsmosisError, ValidationError
from osmosis.metrics.formats import number
from osmosis.metrics.warnings import alarms
from osmosis.platform import Platform, tables
from osmosis.platform.db import changed_by
from osmosis.platform.settings import PlatformSettings
from osmosis.platform.workspaces import secrets
from osmosis.platform.workspaces.rollout_servers import takes_private
from osmosis.records.api.runs import Notice, NoticeEvent
from osmosis.records.base import utc_now
from osmosis.records.config.run_config import Notify
from osmosis.records.run.report import Report
from osmosis.records.run.status import RunStatus, ended_by_limit

log = logging.getLogger(__name__)
logging.getLogger("httpx").setLevel(logging.WARNING)  # it writes every URL, and these are secrets

BATCH = 20
TIMEOUT_S = 10.0
CLAIM = timedelta(minutes=2)
MAX_TRIES = 8


def note_end(session: Session, run: tables.Run) -> None:
    notify, failure = find_notify(run.config), run.failure or {}
    is_at_limit = ended_by_limit(run.status, str(failure.get("category")))
    if notify is None or (notify.when == "failed" and not is_at_limit and run.status != RunStatus.FAILED.value):
        return
    report = Report.model_validate(run.report) if run.report else None
    primary, reason = report.primary if report else None, str(failure.get("message") or "")
    reward = primary.mean if primary else None
    score = f": {primary.name} {number(reward)}" if primary and reward is not None else ""
    head = f"{run.name} {'stopped at a limit' if is_at_limit else run.status}{score}, {run.model_path} on {run.dataset}"
    signs = alarms(report, run.model_path) if run.kind == "eval" else []
    text = "\n".join([head, *filter(None, [reason]), *signs])
    enqueue(session, run.workspace_id, notify, "run.ended", text, run, reward=reward, reason=reason, alarms=signs)


def note_alarm(session: Session, run: tables.Run, message: str) -> None:
    if (notify := find_notify(run.config)) is not None:
        enqueue(session, run.workspace_id, notify, "run.alarm", f"{run.name}: {message}", run, alarms=[message])


def find_notify(config: tables.StoredConfig) -> Notify | None:
    return Notify.model_validate(config["notify"]) if config.get("notify") else None


def enqueue(
    session: Session,
    workspace_id: str,
    notify: Notify,
    event: NoticeEvent,
    text: str,
    run: tables.Run | None = None,
    **more: object,
) -> None:
    notice = Notice.model_validate({"event": event, "text": text, **more})
    notice.workspace = session.get_one(tables.Workspace, workspace_id).name
    if run is not None:
        notice.run, notice.kind, notice.status = run.name, run.kind, run.status
        notice.model, notice.dataset = run.model_path, run.dataset
    channels = {"webhook": notify.webhook_secret, "slack": notify.slack_secret, "email": ", ".join(notify.email)}
    for channel, target in channels.items():
        if target:
            row = tables.Notice(workspace_id=workspace_id, channel=channel, target=target, body=notice.to_dict())
            row.signing_secret = notify.signing_secret if channel == "webhook" else None
            row.run_id, row.owner_id = (run.id, run.creator_id) if run else (None, None)
            session.add(row)


def deliver_due(platform: Platform) -> None:
    with platform.db.read() as session:
        due = sa.select(tables.Notice).where(tables.Notice.due_at <= utc_now()).order_by(tables.Notice.due_at)
        notices = list(session.scalars(due.limit(BATCH)))
    for notice in notices:
        same = tables.Notice.id == notice.id, tables.Notice.due_at == notice.due_at  # no other process delivers it
        claim = sa.update(tables.Notice).where(*same).values(due_at=utc_now() + CLAIM, tries=notice.tries + 1)
        with platform.db.write() as session:
            is_claimed = changed_by(session, claim) == 1
        problem: OsmosisError | None = None
        try:
            if is_claimed:
                _send(platform, notice)
        except OsmosisError as error:
            problem = error
        if is_claimed:
            with platform.db.write() as session:
                _close(session, session.get(tables.Notice, notice.id), problem)


def _close(session: Session, notice: tables.Notice | None, problem: OsmosisError | None) -> None:
    if notice is None:  # its run was deleted
        return
    is_last = problem is None or not isinstance(problem, NetworkError) or notice.tries >= MAX_TRIES
    pause_s = backoff_delay(notice.tries, base_s=10.0, max_s=1800.0)
    notice.due_at = utc_now() + timedelta(seconds=pause_s)
    if problem is not None:
        onward = "it is not tried again" if is_last else f"next try in {pause_s:.0f} s"
        text = f"the {notice.channel} notice to {notice.target} was not delivered: {problem.message}; {onward}"
        log.warning("%s: %s", notice.body.get("run", "a schedule"), text)
        if notice.run_id:
            session.add(tables.RunLog(run_id=notice.run_id, level="warning", step="notify", message=text))
    if is_last:
        session.delete(notice)


def _send(platform: Platform, notice: tables.Notice) -> None:
    settings, record = platform.settings, Notice.model_validate(notice.body)
    record.url = settings.run_url(notice.run_id) if notice.run_id else f"{settings.url}/{record.workspace}/repository"
    record.sent_at = utc_now().isoformat(timespec="seconds")
    text = f"{record.text}\n{record.url}"
    if notice.channel == "email":
        _mail(settings, notice.target, record.text.partition("\n")[0], text)
        return
    owner, names = (notice.workspace_id, notice.owner_id), filter(None, (notice.target, notice.signing_secret))
    with platform.db.read() as session:
        url, *keys = (secrets.find_value(session, platform.vault, *owner, name) for name in names)
    if notice.channel == "slack":
        _post(settings, url, orjson.dumps({"text": html.escape(text, quote=False)}), {})
        return
    body, headers = orjson.dumps(record.to_dict()), {"webhook-id": notice.id}
    headers["webhook-timestamp"] = stamp = str(int(utc_now().timestamp()))
    for key in keys:
        code = hmac.digest(key.encode(), f"{notice.id}.{stamp}.".encode() + body, hashlib.sha256)
        headers["webhook-signature"] = f"v1,{base64.b64encode(code).decode()}"
    _post(settings, url, body, headers)


def _post(settings: PlatformSettings, url: str, body: bytes, headers: dict[str, str]) -> None:
    if not is_http(url):
        raise ValidationError("the secret's value is not an http:// or https:// URL")
    parts = httpx.URL(url)
    headers = {**headers, "Content-Type": "application/json", "Host": parts.netloc.decode()}
    checked, names = parts.copy_with(host=_resolve(settings, parts)), {"sni_hostname": parts.host}
    try:
        with (
            httpx.Client(trust_env=False, timeout=TIMEOUT_S) as client,
            client.stream("POST", checked, content=body, headers=headers, extensions=names) as reply,
        ):
            status = reply.status_code
    except httpx.HTTPError as error:
        raise NetworkError(f"no answer ({type(error).__name__})") from None
    if not 200 <= status < 300:
        problem = NetworkError if status >= 500 or status in (408, 425, 429) else ValidationError
        raise problem(f"the answer was HTTP {status}")


def _resolve(settings: PlatformSettings, url: httpx.URL) -> str:
    try:
        entries = socket.getaddrinfo(url.host, url.port or url.scheme, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise NetworkError("its host cannot be resolved") from None
    addresses = [str(entry[4][0]).partition("%")[0] for entry in entries]
    may_be_private = url.host in settings.remote_allow or takes_private(settings)
    for address in addresses:
        inner = embedded_address(ipaddress.ip_address(address))
        is_odd = inner.is_link_local or inner.is_multicast or inner.is_unspecified
        if is_odd or not (may_be_private or is_public(address)):
            raise ValidationError("its host is not a public address; an operator can allow it: --remote-allow HOST")
        if url.scheme == "http" and is_public(address):
            raise ValidationError("its URL is plain http, which others can read: use https")
    return addresses[0]


def _mail(settings: PlatformSettings, to: str, subject: str, text: str) -> None:
    url, tls = urlsplit(settings.smtp_url.get_secret_value()), ssl.create_default_context()
    user, host, message = unquote(url.username or ""), url.hostname or "", EmailMessage()
    message["From"] = user if "@" in user else f"osmosis@{urlsplit(settings.url).hostname}"
    message["To"], message["Subject"] = to, f"osmosis: {subject}"
    message.set_content(text)
    try:
        if url.scheme == "smtps":
            server: smtplib.SMTP = smtplib.SMTP_SSL(host, url.port or 465, timeout=TIMEOUT_S, context=tls)
        else:
            server = smtplib.SMTP(host, url.port or 587, timeout=TIMEOUT_S)
        with server:
            if url.scheme == "smtp" and (not is_loopback(host) or (server.ehlo() and server.has_extn("starttls"))):
                server.starttls(context=tls)
            if user:
                server.login(user, unquote(url.password or ""))
            server.send_message(message)
    except (OSError, smtplib.SMTPException) as error:
        raise NetworkError(f"the mail server did not take it ({type(error).__name__})") from None
