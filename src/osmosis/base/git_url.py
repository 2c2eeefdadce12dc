"""URLs of git remotes: https, ssh, git, scp form, file and plain path. Credentials are never kept or quoted."""

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from osmosis.base.redact import without_credentials
from osmosis.errors import ValidationError

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
_SCP = re.compile(r"^(?:(?P<user>[^@/\s]+)@)?(?P<host>\[[^\]\s]+\]|[^:/\s@]+):(?P<path>(?!//).+)\Z")
_DRIVE = re.compile(r"^[A-Za-z]:[\\/]")
_SCP_PASSWORD = re.compile(r"^([^@/\s:]+):[^@/\s]*@")
_QUERY = re.compile(r"[?#]\S*")
HINT = "git remote set-url origin <url>, for example https://host/owner/repo.git"


@dataclass(frozen=True, slots=True)
class GitUrl:
    scheme: str
    host: str | None
    path: str
    """Path of the repository on the host, without outer slashes and `.git`."""
    identity: str | None
    """`owner/repo`, lower-case; None when the path has fewer than two segments."""
    display: str
    has_credential: bool = False
    """Has a password, a query, or a user over http: the last two may be tokens."""


def parse_git_url(url: str) -> GitUrl:
    if not url or url != url.strip() or any(ord(c) < 32 or ord(c) == 127 for c in url):
        raise _refused(url, "is empty or has whitespace at its ends or control characters in it")
    if scheme := _SCHEME.match(url):
        return _from_url(url, scheme.group(1).lower())
    if re.match(r"^[A-Za-z0-9+.-]+::", url):
        raise _refused(url, "runs a git helper program, which is not allowed")
    if _DRIVE.match(url):
        return _from_path(url.replace("\\", "/"))
    if not url.startswith(("/", ".", "~")) and (scp := _SCP.match(url)):
        raw = scp["path"]
        path = _clean(url, raw)
        if not path:
            raise _refused(url, "has no repository path")
        host = scp["host"].lower()
        user = scp["user"].split(":", 1)[0] + "@" if scp["user"] else ""
        return GitUrl("ssh", host, path, _identity(path), f"{user}{host}:{raw}", ":" in (scp["user"] or ""))
    if ":" in url.split("/", 1)[0]:
        raise _refused(url, "is neither a URL nor host:path")
    return _from_path(url)


def find_web_page(url: str) -> str:
    try:
        remote = parse_git_url(url)
    except ValidationError:
        return ""
    return f"https://{remote.host}/{remote.path}" if remote.host in ("github.com", "codeberg.org") else ""


def _from_url(url: str, scheme: str) -> GitUrl:
    if scheme not in ("https", "http", "ssh", "git", "file", "git+ssh", "ssh+git", "git+https", "git+http"):
        raise _refused(url, f"uses {scheme}://, which is not a git protocol")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _refused(url, "has a host or port that cannot be read") from None
    path = _clean(url, parts.path)
    if scheme == "file":
        if host not in (None, "localhost"):
            raise _refused(url, "names a host; file URLs are file:///path")
        return GitUrl("file", None, path, _identity(path, local=True), f"file://{parts.path}")
    if not host or re.search(r"\s", host):
        raise _refused(url, "has no host")
    if not path:
        raise _refused(url, "has no repository path")
    bare = scheme.replace("git+", "").replace("+git", "")
    shown_host = f"[{host}]" if ":" in host else host
    if port is not None and port != {"https": 443, "http": 80, "ssh": 22, "git": 9418}.get(bare):
        shown_host = f"{shown_host}:{port}"
    # The user of an ssh URL is part of the address (git@); over http it may be a token.
    user = f"{parts.username}@" if bare == "ssh" and parts.username else ""
    credential = parts.password is not None or bool(parts.query) or (bare != "ssh" and parts.username is not None)
    return GitUrl(bare, shown_host, path, _identity(path), f"{bare}://{user}{shown_host}{parts.path}", credential)


def _from_path(url: str) -> GitUrl:
    path = _clean(url, url, encoded=False)
    if not path:
        raise _refused(url, "is not the path of a repository")
    return GitUrl("path", None, path, _identity(path, local=url.startswith("/")), without_credentials(url))


def _clean(url: str, path: str, *, encoded: bool = True) -> str:
    if encoded:
        if re.search(r"%(2f|5c|00|0a|0d)", path, re.IGNORECASE):
            raise _refused(url, "has an encoded separator in its path")
        path = unquote(path)
        if any(ord(c) < 32 for c in path):
            raise _refused(url, "has control characters in its path")
    path = re.sub(r"/+", "/", path).strip("/")
    return re.sub(r"(?:/\.git|\.git)\Z", "", path)


def _identity(path: str, *, local: bool = False) -> str | None:
    segments = [s for s in path.split("/") if s not in ("", ".", "..", "~")]
    if len(segments) < 2:
        # A repository right below the root of a disk has no owner; the platform calls it so too.
        return f"local/{segments[0]}".lower() if segments and local else None
    return "/".join(segments[-2:]).lower()


def _refused(url: str, reason: str) -> ValidationError:
    safe_url = _QUERY.sub("", without_credentials(_SCP_PASSWORD.sub(r"\1@", url)))
    return ValidationError(f"the remote URL {safe_url!r} {reason}", hint=HINT)
