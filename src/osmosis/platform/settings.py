"""What one platform process is told: where it keeps data, where it listens, how it runs jobs.

Built once by `python -m osmosis.platform` (or by a test) and passed down; nothing below reads the process
environment. Creates no file and opens no connection.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr, field_validator

from osmosis.base.net import host_of, is_http, is_loopback
from osmosis.base.paths import data_dir as default_data_dir
from osmosis.base.variables import Settings, Variable
from osmosis.errors import UsageError
from osmosis.records.gate_address import GateAddress
from osmosis.records.run import TorchBuild
from osmosis.records.sandbox import SandboxSettings
from osmosis.records.sign_in import OpenIdSettings

DEFAULT_PORT = 7575
Days = Annotated[int | None, Field(ge=0), BeforeValidator(lambda value: None if value == "never" else value)]
"""How long something is kept; None, or `never` in a variable: it never goes by itself."""
LogFormat = Literal["text", "json"]
BUCKET = re.compile(r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._/-]*)?\Z")
WILDCARDS = ("0.0.0.0", "::", "")


def local_job_command() -> tuple[str, ...]:
    """What an executor starts; `--run URL` is appended."""
    return (sys.executable, "-m", "osmosis.jobs")


class PlatformSettings(Settings):
    """Everything a platform process needs to know. Times are in seconds."""

    data_dir: Path
    host: str = "127.0.0.1"
    port: int = Field(default=DEFAULT_PORT, ge=0, le=65535)
    public_url: Annotated[str, Variable("OSMOSIS_PUBLIC_URL")] = ""
    """How clients and browsers reach it; empty = `http://<host>:<port>`."""
    allowed_hosts: Annotated[tuple[str, ...], Variable("OSMOSIS_ALLOWED_HOSTS")] = ()
    """Names that requests may carry in their Host header, besides loopback, `host` and that of `public_url`:
    `osmosis.lan`, `*.example.com`; the variable separates them by commas."""
    job_url: str = ""
    """How jobs of this machine reach it; empty = by host and port. A worker in a process of its own is told."""
    database_url: Annotated[str, Variable("OSMOSIS_DATABASE_URL")] = Field(default="", repr=False)
    """SQLAlchemy URL; empty = SQLite in `data_dir`."""
    objects: Annotated[str, Variable("OSMOSIS_OBJECTS")] = ""
    """`s3://bucket/prefix`, where datasets, artifacts, models and checkpoints are kept; empty = in `data_dir`. The
    variables of AWS's tools say where it is and with which credentials."""
    backup_before_upgrade: Annotated[bool, Variable("OSMOSIS_BACKUP_BEFORE_UPGRADE")] = True
    """Keep the rows of a database before a newer version changes its tables."""
    keep_runs_days: Annotated[Days, Variable("OSMOSIS_KEEP_RUNS_DAYS")] = 30
    """What a run worked with (checkout, journal) goes so many days after its end; its results stay."""
    keep_artifacts_days: Annotated[Days, Variable("OSMOSIS_KEEP_ARTIFACTS_DAYS")] = None
    """The files that its rollouts left."""
    keep_logs_days: Annotated[Days, Variable("OSMOSIS_KEEP_LOGS_DAYS")] = None
    """The log of a run that is over."""
    keep_caches_days: Annotated[Days, Variable("OSMOSIS_KEEP_CACHES_DAYS")] = 14
    """Environments, wheels, uv's caches and fetched models that no run has used for so long."""
    master_key: Annotated[SecretStr, Variable("OSMOSIS_MASTER_KEY")] = SecretStr("")
    """Base64 of the 32 bytes that encrypt secrets; empty = a file in `data_dir`."""
    log_format: Annotated[LogFormat, Variable("OSMOSIS_LOG_FORMAT")] = "text"
    """Lines of the log as text, or as one JSON object each."""
    log_requests: Annotated[bool, Variable("OSMOSIS_LOG_REQUESTS")] = False
    """A line of the log for every request."""
    metrics_token: Annotated[SecretStr, Variable("OSMOSIS_METRICS_TOKEN")] = SecretStr("")
    """Who sends it as bearer token may read `/metrics`; empty: whoever asks from this machine, and through no proxy."""
    worker: bool = True
    """Run the worker inside this process."""
    max_jobs: int = Field(default=1, ge=1)
    """Jobs this worker runs at once."""
    lease_s: float = Field(default=60.0, gt=0)
    """A run whose job says nothing for this long is taken over."""
    poll_s: float = Field(default=0.5, gt=0)
    """How often the worker looks for work when it has none."""
    stop_grace_s: float = Field(default=20.0, ge=0)
    """How long a stopped job may take to finish what is in flight before its processes are killed."""
    training_stop_grace_s: float = Field(default=330.0, ge=0)
    """The same of a training job, which finishes the update of its weights and saves a checkpoint."""
    max_starts: int = Field(default=3, ge=1)
    """How often one run is started before it is declared failed."""
    start_pause_s: float = Field(default=5.0, ge=0)
    """About how long a job waits after a start that its executor refused; twice as long after the next, and so on."""
    job_command: tuple[str, ...] = Field(default_factory=local_job_command)
    """The job process; `--run URL` is appended. Tests pass a fake."""
    part_bytes: int = Field(default=32 * 1024 * 1024, ge=1)
    """Uploads above twice this size are sent in parts of it."""
    inline_bytes: int = Field(default=64 * 1024 * 1024, ge=0)
    """Datasets up to this size are checked within the request; larger ones afterwards, in the background."""
    url_lifetime_s: int = Field(default=900, ge=1)
    """How long a signed object URL works."""
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
    """Which build of torch the trainer's environment gets: with CUDA, for the CPU, or by whether there is a GPU."""

    max_deployments: Annotated[int, Variable("OSMOSIS_MAX_DEPLOYMENTS")] = Field(default=2, ge=0)
    """Models that are served at once; each is held in memory for as long as it is deployed."""
    inference_timeout_s: float = Field(default=900.0, gt=0)
    """How long one answer of a deployed model may take."""

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value

    @field_validator("objects")
    @classmethod
    def _bucket(cls, value: str) -> str:
        if value and not BUCKET.match(value):
            raise ValueError("must be s3://BUCKET or s3://BUCKET/PREFIX")
        return value

    openid: OpenIdSettings | None = None
    """Who signs people in besides links and tokens."""
    sandbox: SandboxSettings = Field(default_factory=SandboxSettings)
    """What keeps rollouts from this machine."""
    gate: GateAddress | None = None
    """How rollout servers on other machines reach training jobs of this one; None: they do not."""

    @field_validator("public_url", "job_url")
    @classmethod
    def _http(cls, value: str) -> str:
        if value and not is_http(value):
            raise ValueError("must be an http:// or https:// URL, such as https://osmosis.example.com")
        return value

    def refuse_open_http(self) -> None:
        """UsageError where tokens and secrets would cross a network in the open."""
        hint = "put https in front and say --public-url https://NAME; in a network you trust: --insecure-http"
        if self.public_url and not self.public_url.startswith("https://") and not is_loopback(self.public_url):
            raise UsageError(f"{self.public_url} is plain http: whoever is in between reads tokens", hint=hint)
        if not is_loopback(self.host) and not self.public_url.startswith("https://"):
            raise UsageError(f"{self.host} can be reached by others over plain http", hint=hint)

    @property
    def url(self) -> str:
        """Base URL without a trailing slash."""
        return self.public_url.rstrip("/") if self.public_url else self._own_url

    @property
    def host_names(self) -> tuple[str, ...]:
        """What this platform is called, besides loopback; addresses that name no machine are none of them."""
        own = [self.host] if self.host not in WILDCARDS else []
        return (*own, *(host_of(url) for url in (self.public_url, self.job_url) if url), *self.allowed_hosts)

    @property
    def job_base_url(self) -> str:
        """Where jobs report to: this process itself, never a proxy in front of it, unless told otherwise."""
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
        """Uploaded files."""
        return self.data_dir / "objects"

    @property
    def repositories_dir(self) -> Path:
        """Bare repositories of the git host."""
        return self.data_dir / "repositories"

    @property
    def runs_dir(self) -> Path:
        """One persistent folder per run."""
        return self.data_dir / "runs"

    @property
    def cache_dir(self) -> Path:
        """Environments and wheels of jobs, shared by runs."""
        return self.data_dir / "cache"

    def viewer_index(self, run_id: str) -> Path:
        """Where the index lies that a run's pages search: a file for each epoch, beside this name."""
        return self.cache_dir / "viewer" / f"{run_id}.db"

    @property
    def sent_dir(self) -> Path:
        """What is made for jobs on other machines to fetch, one folder per run."""
        return self.data_dir / "sent"

    def stored(self, path: Path) -> str:
        """A path as the database keeps it: relative to the data folder, so that the folder can be moved."""
        return path.relative_to(self.data_dir).as_posix()

    def located(self, stored: str) -> Path:
        """Where a stored path is now."""
        return self.data_dir / stored

    @property
    def models_dir(self) -> Path:
        """Base models, and the checkpoints of training runs."""
        return self.data_dir / "models"

    @property
    def mirrors_dir(self) -> Path:
        """Bare mirrors of repositories that are hosted elsewhere."""
        return self.data_dir / "mirrors"

    @property
    def log_file(self) -> Path:
        return self.data_dir / "logs" / "platform.log"

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], **given: Any) -> PlatformSettings:
        """Settings of a process: what was given on the command line (None: nothing) over `OSMOSIS_*` variables."""
        flags = {key: value for key, value in given.items() if value is not None}
        openid = OpenIdSettings.from_environ(environ)
        return cls(**{"openid": openid, "data_dir": default_data_dir(environ), "environ": dict(environ), **flags})
