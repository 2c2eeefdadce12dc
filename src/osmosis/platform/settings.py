"""Settings of one platform process, passed down; nothing below reads the environment."""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, field_validator, model_validator

from osmosis.base.net import is_http, is_loopback, parse_host
from osmosis.base.paths import data_dir as default_data_dir
from osmosis.base.variables import Settings, Variable
from osmosis.errors import UsageError
from osmosis.records.config.worker import GateAddress
from osmosis.records.run.job import TorchBuild
from osmosis.records.sandbox import SandboxSettings

DEFAULT_PORT = 7575
Days = Annotated[int | None, Field(ge=0), BeforeValidator(lambda value: None if value == "never" else value)]
"""How long something is kept; None (`never` in a variable): for ever."""
Words = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda value: [word.strip() for word in value.split(",")] if isinstance(value, str) else value),
    AfterValidator(lambda words: tuple(filter(None, words))),
]
"""Words, which a variable separates by commas."""
LogFormat = Literal["text", "json"]
BUCKET = re.compile(r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._/-]*)?\Z")
WILDCARDS = ("0.0.0.0", "::", "")


class OpenIdSettings(Settings):
    """One provider, by `OSMOSIS_OIDC_*` variables. `domains` and `groups` say which unknown people get an account."""

    issuer: Annotated[str, Variable("OSMOSIS_OIDC_ISSUER")]
    """URL below which `/.well-known/openid-configuration` is; https, or http on this machine."""
    client_id: Annotated[str, Variable("OSMOSIS_OIDC_CLIENT_ID")] = Field(min_length=1)
    client_secret: Annotated[SecretStr, Variable("OSMOSIS_OIDC_CLIENT_SECRET")] = SecretStr("")
    """Empty, without a file too: a public client, which PKCE alone protects."""
    client_secret_file: Annotated[Path | None, Variable("OSMOSIS_OIDC_CLIENT_SECRET_FILE")] = None
    label: Annotated[str, Variable("OSMOSIS_OIDC_NAME")] = ""
    """Name of the provider on the login page's button; empty: its host."""
    scopes: Annotated[Words, Variable("OSMOSIS_OIDC_SCOPES")] = ("openid", "email", "profile")
    """Scopes to ask for; a provider that tells groups by a scope of its own needs that here."""
    domains: Annotated[Words, Variable("OSMOSIS_OIDC_DOMAINS")] = ()
    """People with a verified address in one of these get an account; lower-case: `example.com`, not `a.example.com`."""
    groups: Annotated[Words, Variable("OSMOSIS_OIDC_GROUPS")] = ()
    """People in one of these get an account; with `domains`, too, both are needed."""
    groups_claim: Annotated[str, Variable("OSMOSIS_OIDC_GROUPS_CLAIM")] = "groups"

    @field_validator("scopes", mode="before")
    @classmethod
    def _scopes(cls, value: object) -> object:
        return ",".join(value.split()) if isinstance(value, str) else value

    @field_validator("scopes")
    @classmethod
    def _openid(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return value if "openid" in value else ("openid", *value)

    @field_validator("domains")
    @classmethod
    def _domains(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name.lower().lstrip("@") for name in value)

    @field_validator("issuer")
    @classmethod
    def _safe(cls, value: str) -> str:
        if not is_http(value) or not (value.startswith("https://") or is_loopback(value)):
            raise ValueError("must be an https:// URL, such as https://login.example.com")
        return value

    @model_validator(mode="after")
    def _one_secret(self) -> "OpenIdSettings":
        if self.client_secret_file is not None:
            if self.client_secret.get_secret_value():
                raise ValueError("give OSMOSIS_OIDC_CLIENT_SECRET or OSMOSIS_OIDC_CLIENT_SECRET_FILE, not both")
            if not self.secret:
                raise ValueError(f"the file of OSMOSIS_OIDC_CLIENT_SECRET_FILE is empty: {self.client_secret_file}")
        return self

    @property
    def secret(self) -> str:
        if self.client_secret_file is None:
            return self.client_secret.get_secret_value()
        try:
            return self.client_secret_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"OSMOSIS_OIDC_CLIENT_SECRET_FILE cannot be read: {error}") from None

    @property
    def name(self) -> str:
        return self.label or parse_host(self.issuer)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "OpenIdSettings | None":
        return cls(environ=dict(environ)) if environ.get("OSMOSIS_OIDC_ISSUER") else None


@dataclass(frozen=True, slots=True)
class Identity:
    """A person as a provider knows them; `issuer` and `subject` together never mean another one."""

    issuer: str
    subject: str
    email: str
    verified: bool
    name: str
    handle: str
    groups: frozenset[str] = frozenset()


class PlatformSettings(Settings):
    """Settings of a platform process; durations in seconds."""

    data_dir: Path
    host: str = "127.0.0.1"
    port: int = Field(default=DEFAULT_PORT, ge=0, le=65535)
    public_url: Annotated[str, Variable("OSMOSIS_PUBLIC_URL")] = ""
    """How clients and browsers reach it; empty = `http://<host>:<port>`."""
    allowed_hosts: Annotated[Words, Variable("OSMOSIS_ALLOWED_HOSTS")] = ()
    """Names that requests may carry in their Host header, beside our own: `osmosis.lan`, `*.example.com`."""
    job_url: str = ""
    """How jobs of this machine reach it; empty = by host and port. A worker in a process of its own is told."""
    database_url: Annotated[str, Variable("OSMOSIS_DATABASE_URL")] = Field(default="", repr=False)
    """SQLAlchemy URL; empty = SQLite in `data_dir`."""
    database_limit_s: Annotated[float, Variable("OSMOSIS_DATABASE_LIMIT_S")] = Field(default=20.0, gt=0)
    """How long one statement on PostgreSQL, or the wait for a connection to it, may take; then requests get 503."""
    objects: Annotated[str, Variable("OSMOSIS_OBJECTS")] = ""
    """`s3://bucket/prefix`, by the variables of AWS's tools; empty = in `data_dir`."""
    backup_before_upgrade: Annotated[bool, Variable("OSMOSIS_BACKUP_BEFORE_UPGRADE")] = True
    keep_runs_days: Annotated[Days, Variable("OSMOSIS_KEEP_RUNS_DAYS")] = 30
    """Days after a run's end for which its checkout and journal are kept; its results stay."""
    keep_artifacts_days: Annotated[Days, Variable("OSMOSIS_KEEP_ARTIFACTS_DAYS")] = None
    """The files that its rollouts left."""
    keep_logs_days: Annotated[Days, Variable("OSMOSIS_KEEP_LOGS_DAYS")] = None  # the log of a run that is over
    keep_caches_days: Annotated[Days, Variable("OSMOSIS_KEEP_CACHES_DAYS")] = 14
    """Environments, wheels, uv's caches and fetched models that no run has used for so long."""
    keep_calls_days: Annotated[Days, Variable("OSMOSIS_KEEP_CALLS_DAYS")] = 30
    """Calls of models in production (traces, and those of deployments); 0 stores none."""
    master_key: Annotated[SecretStr, Variable("OSMOSIS_MASTER_KEY")] = SecretStr("")
    """Base64 of the 32 bytes that encrypt secrets; empty = a file in `data_dir`."""
    log_format: Annotated[LogFormat, Variable("OSMOSIS_LOG_FORMAT")] = "text"
    log_requests: Annotated[bool, Variable("OSMOSIS_LOG_REQUESTS")] = False
    metrics_token: Annotated[SecretStr, Variable("OSMOSIS_METRICS_TOKEN")] = SecretStr("")
    """Bearer token with which `/metrics` may be read; empty: from this machine alone, through no proxy."""
    worker: bool = True
    max_jobs: int = Field(default=1, ge=1)
    lease_s: float = Field(default=60.0, gt=0)  # a run whose job says nothing for this long is taken over
    poll_s: float = Field(default=0.5, gt=0)  # how often the worker looks for work when it has none
    stop_grace_s: float = Field(default=20.0, ge=0)
    """How long a stopped job may take to finish what is in flight before its processes are killed."""
    training_stop_grace_s: float = Field(default=330.0, ge=0)
    """The same of a training job, which finishes the update of its weights and saves a checkpoint."""
    max_starts: int = Field(default=3, ge=1)  # how often one run is started before it is declared failed
    start_pause_s: float = Field(default=5.0, ge=0)
    """About how long a job waits after a start that its executor refused; twice as long after the next, and so on."""
    job_command: tuple[str, ...] = (sys.executable, "-m", "osmosis.jobs")
    """The job process; `--run URL` is appended. Tests pass a fake."""
    part_bytes: int = Field(default=32 * 1024 * 1024, ge=1)  # uploads above twice this size are sent in parts of it
    inline_bytes: int = Field(default=64 * 1024 * 1024, ge=0)
    """Datasets up to this size are checked within the request; larger ones afterwards, in the background."""
    url_lifetime_s: int = Field(default=900, ge=1)  # how long a signed object URL works
    owner_name: str = "local"
    """Handle of the first user, who starts the platform; also the owner part of internal repositories."""
    remote_allow: tuple[str, ...] = ()
    """Hosts of git remotes that may be reached although their addresses are private: `gitlab.lan`."""
    remote_poll_s: float = Field(default=300.0, ge=0)
    """How often repositories elsewhere are looked at for new commits; 0: only when asked or told by a webhook."""
    sync_limit_s: Annotated[float, Variable("OSMOSIS_SYNC_LIMIT_S")] = Field(default=900.0, gt=0)
    """How long one sync may take, with its wait for a turn; then its event says so."""
    objects_limit_s: Annotated[float, Variable("OSMOSIS_OBJECTS_LIMIT_S")] = Field(default=30.0, gt=0)
    """How long one request to the object store may take; one that failed is sent again within as long."""
    max_fetch_bytes: Annotated[int, Variable("OSMOSIS_MAX_FETCH_BYTES")] = Field(default=4 * 1024**3, ge=1024)
    """The most that one fetch of a repository elsewhere may bring."""
    private_servers: bool = False
    """Rollout servers on loopback and private networks may register although this platform is reached by others."""

    model_folders: Annotated[str, Variable("OSMOSIS_MODEL_FOLDERS")] = ""
    """Folders of this machine, separated by `:`, below which a training config may name its base model by path."""
    torch: Annotated[TorchBuild, Variable("OSMOSIS_TORCH")] = "auto"
    """The build of torch in the trainer's environment: with CUDA, for the CPU, or by whether there is a GPU."""

    max_deployments: Annotated[int, Variable("OSMOSIS_MAX_DEPLOYMENTS")] = Field(default=2, ge=0)
    """Models that are served at once; each is held in memory for as long as it is deployed."""
    inference_timeout_s: float = Field(default=900.0, gt=0)  # how long one answer of a deployed model may take

    @field_validator("objects")
    @classmethod
    def _bucket(cls, value: str) -> str:
        if value and not BUCKET.match(value):
            raise ValueError("must be s3://BUCKET or s3://BUCKET/PREFIX")
        return value

    smtp_url: Annotated[SecretStr, Variable("OSMOSIS_SMTP_URL")] = SecretStr("")
    """Mail server of `[notify]`: `smtps://USER:PASSWORD@HOST:PORT`, or `smtp://` for STARTTLS; empty: no e-mail."""

    @field_validator("smtp_url")
    @classmethod
    def _mail_server(cls, value: SecretStr) -> SecretStr:
        parts = urlsplit(value.get_secret_value())
        if value.get_secret_value() and (parts.scheme not in ("smtp", "smtps") or not parts.hostname):
            raise ValueError("must be smtps://USER:PASSWORD@HOST:PORT or smtp://USER:PASSWORD@HOST:PORT")
        return value

    openid: OpenIdSettings | None = None  # who signs people in besides links and tokens
    sandbox: SandboxSettings = Field(default_factory=SandboxSettings)
    gate: GateAddress | None = None
    """How rollout servers on other machines reach training jobs of this one; None: they do not."""

    @field_validator("public_url", "job_url")
    @classmethod
    def _http(cls, value: str) -> str:
        if value and not is_http(value):
            raise ValueError("must be an http:// or https:// URL, such as https://osmosis.example.com")
        return value

    def refuse_open_http(self) -> None:
        """Raise UsageError if tokens and secrets would cross a network in the open."""
        hint = "put https in front and say --public-url https://NAME; in a network you trust: --insecure-http"
        if self.public_url and not self.public_url.startswith("https://") and not is_loopback(self.public_url):
            raise UsageError(f"{self.public_url} is plain http: whoever is in between reads tokens", hint=hint)
        if not is_loopback(self.host) and not self.public_url.startswith("https://"):
            raise UsageError(f"{self.host} can be reached by others over plain http", hint=hint)

    @property
    def url(self) -> str:
        return self.public_url.rstrip("/") if self.public_url else self._own_url

    def run_url(self, run_id: str) -> str:
        return f"{self.url}/runs/{run_id}"

    def dataset_url(self, dataset_id: str) -> str:
        return f"{self.url}/datasets/{dataset_id}"

    def secrets_url(self, workspace_name: str) -> str:
        return f"{self.url}/{quote(workspace_name)}/secrets"

    def login_url(self, code: str) -> str:
        return f"{self.url}/login/link?code={quote(code)}"

    def device_url(self, user_code: str = "") -> str:
        return f"{self.url}/device" + (f"?user_code={quote(user_code)}" if user_code else "")

    @property
    def host_names(self) -> tuple[str, ...]:
        """Return the platform's names besides loopback, without addresses such as 0.0.0.0."""
        own = [self.host] if self.host not in WILDCARDS else []
        return (*own, *(parse_host(url) for url in (self.public_url, self.job_url) if url), *self.allowed_hosts)

    @property
    def job_base_url(self) -> str:
        """Return where jobs report to: this process itself, never a proxy before it, unless set."""
        return self.job_url.rstrip("/") if self.job_url else self._own_url

    @property
    def _own_url(self) -> str:
        host = "127.0.0.1" if self.host in WILDCARDS else self.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def database(self) -> str:
        return self.database_url or f"sqlite:///{self.data_dir / 'platform.db'}"

    @property
    def objects_dir(self) -> Path:
        return self.data_dir / "objects"

    @property
    def repositories_dir(self) -> Path:
        return self.data_dir / "repositories"

    @property
    def runs_dir(self) -> Path:
        return self.data_dir / "runs"

    @property
    def cache_dir(self) -> Path:
        return self.data_dir / "cache"

    def viewer_index(self, run_id: str) -> Path:
        """The index of a run's pages: a file for each epoch, beside this name."""
        return self.cache_dir / "viewer" / f"{run_id}.db"

    @property
    def sent_dir(self) -> Path:
        return self.data_dir / "sent"

    def stored(self, path: Path) -> str:
        """Return a path as stored: relative to the data folder, which may be moved."""
        return path.relative_to(self.data_dir).as_posix()

    def located(self, stored: str) -> Path:
        return self.data_dir / stored

    @property
    def models_dir(self) -> Path:
        return self.data_dir / "models"

    @property
    def log_file(self) -> Path:
        return self.data_dir / "logs" / "platform.log"

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], **options: Any) -> "PlatformSettings":
        """Return the settings from the command line (None: not given) and `OSMOSIS_*` variables."""
        flags = {key: value for key, value in options.items() if value is not None}
        openid = OpenIdSettings.from_environ(environ)
        return cls(**{"openid": openid, "data_dir": default_data_dir(environ), "environ": dict(environ), **flags})
