import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator
from pydantic_core import InitErrorDetails

from osmosis.base.net import is_http, is_loopback, parse_host
from osmosis.errors import UsageError
from osmosis.records.base import Record, Table, broken_at

_SIZE = re.compile(r"^(\d+(?:\.\d+)?) ?(MB|GB|TB)\Z")


def check_size(text: str) -> str:
    if not _SIZE.match(text):
        raise ValueError('must be a size such as "512MB" or "16GB"')
    return text


Size = Annotated[str, AfterValidator(check_size)]


def megabytes(size: str | None) -> int:
    match = _SIZE.match(size or "")
    return int(float(match[1]) * {"MB": 1, "GB": 1024, "TB": 1024 * 1024}[match[2]]) if match else 0


class Resources(Record):
    """The resources of a worker. Sizes are in MB."""

    cpus: float = Field(default=0, ge=0)
    memory_mb: int = Field(default=0, ge=0)
    gpus: int = Field(default=0, ge=0)
    disk_mb: int = Field(default=0, ge=0)

    def without(self, needs: "ResourceNeeds") -> "Resources":
        return Resources(
            cpus=max(0.0, self.cpus - (needs.cpus or 0)),
            memory_mb=max(0, self.memory_mb - megabytes(needs.memory)),
            gpus=max(0, self.gpus - (needs.gpus or 0)),
            disk_mb=max(0, self.disk_mb - megabytes(needs.disk)),
        )


class ResourceNeeds(Table):
    """`[advanced.resources]`: what a job of the run needs for itself; a key that is not set asks for nothing."""

    cpus: float | None = Field(default=None, gt=0, examples=[4])
    """Processors."""
    memory: Size | None = Field(default=None, examples=["16GB"])
    """Memory, in MB, GB or TB."""
    gpus: int | None = Field(default=None, ge=1, examples=[1])
    """GPUs."""
    disk: Size | None = Field(default=None, examples=["20GB"])
    """Free space for checkouts, environments and artifacts."""
    wall_s: float | None = Field(default=None, gt=0, examples=[3600])
    """Seconds after which an evaluation ends, with what it has."""
    labels: dict[str, str] = Field(default_factory=dict, examples=[{"gpu": "a100"}])
    """Labels that the worker must have."""

    def lacking(self, has: Resources, labels: Mapping[str, str]) -> list[str]:
        needs = (
            ("cpus", self.cpus or 0, has.cpus, self.cpus),
            ("memory", megabytes(self.memory), has.memory_mb, self.memory),
            ("gpus", self.gpus or 0, has.gpus, self.gpus),
            ("disk", megabytes(self.disk), has.disk_mb, self.disk),
        )
        lacking = [f"{name} >= {text}" for name, need, available, text in needs if need > available]
        return lacking + [f"label {key}={value}" for key, value in self.labels.items() if labels.get(key) != value]


ExecutorName = Literal["local", "command", "slurm", "ray"]
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
START_WORDS = frozenset({"name", "count", "cpus", "memory_mb", "gpus", "disk_mb", "wall_s"})
"""Facts of a job for the start command of a scheduler, besides its script on standard input."""
END_WORDS = frozenset({"id"})

QUEUE_S = 86_400.0
PORT = "{port}"


def fill_placeholders(arguments: list[str], values: dict[str, str]) -> list[str]:
    return [_PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), word) for word in arguments]


def _split_words(value: object) -> object:
    return shlex.split(value) if isinstance(value, str) else value


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error as problem:
        raise ValueError(f"is no regular expression: {problem}") from None
    return value


Command = Annotated[list[str], BeforeValidator(_split_words), Field(min_length=1)]
"""A program and its arguments: a list, or one text that is split as a shell would; no shell ever reads it."""
Pattern = Annotated[str, AfterValidator(_regex)]


class CommandOptions(Table):
    """`[command]`: any scheduler, by three commands."""

    start: Command
    """Starts the script on its standard input, and prints what the scheduler calls the job."""
    listing: Command = Field(alias="list")
    """Prints a line for each job: its id, its state."""
    end: Command
    """Ends job `{id}`, or takes it out of its queue."""
    id_pattern: Pattern = r"(\S+)\s*$"
    """Finds the id in what `start` prints: its first group."""
    line_pattern: Pattern = r"^\s*(?P<id>\S+)\s+(?P<state>\S+)"
    """Finds `id` and `state` in a line of `list`; also `code` (exit code) and `why`, if it has such groups."""
    queued: list[str] = Field(default_factory=lambda: ["queued", "pending", "PENDING"])
    """States of jobs that have not begun."""
    ended: list[str] = Field(default_factory=lambda: ["ended", "finished", "failed", "COMPLETED", "FAILED"])
    """States of jobs that are over, as is one that is not listed. In every other state a job works."""
    index_variable: str = ""
    """Variable with the number of a task, where `start` starts `{count}` tasks at once; empty: it starts one."""
    task_id: str = "{id}_{index}"
    """The name of one task of several for `list` and `end`."""
    env: list[str] = Field(default_factory=list)
    """Variables of the worker that the commands need beyond the usual ones, such as KUBECONFIG."""

    @classmethod
    def across(cls, written: dict[str, object]) -> Iterator[InitErrorDetails]:
        for key, placeholders in (("start", START_WORDS), ("list", frozenset[str]()), ("end", END_WORDS)):
            for word in re.findall(_PLACEHOLDER, str(written.get(key, ""))):
                if word not in placeholders:
                    names = ", ".join(f"{{{name}}}" for name in sorted(placeholders)) or "none"
                    yield broken_at(f"knows no {{{word}}}", f"its placeholders: {names}", key)
        if "end" in written and "{id}" not in str(written["end"]):
            yield broken_at("does not say which job", "put {id} where the job's id belongs", "end")


class SlurmOptions(Table):
    """`[slurm]`."""

    template: str = ""
    """File with the batch script: its own `#SBATCH` lines, modules, variables; `{job}` stands where the job begins."""
    options: list[str] = Field(default_factory=list, examples=[["--partition=gpu", "--account=research"]])
    """Further options of sbatch."""
    grace_s: float = Field(default=900, ge=0)
    """Time limit of a job beyond its `wall_s`: checkout and environment."""


class RayOptions(Table):
    """`[ray]`: an existing cluster."""

    address: str = "http://127.0.0.1:8265"
    """URL of its dashboard, where jobs are submitted."""
    token_variable: str = "RAY_AUTH_TOKEN"
    """Variable of the worker with the cluster's token, if it has one."""
    ca_file: str = ""
    """Certificates to trust the address by (PEM)."""
    runtime_env: dict[str, object] = Field(default_factory=dict, examples=[{"image_uri": "registry/osmosis:1.1"}])
    """Runtime environment of jobs, as Ray documents it: `pip`, `uv`, `image_uri`, `env_vars`."""
    cpus: float = Field(default=1, ge=0)
    """Processors of a job that asks for none. With 0 and no resources Ray puts every job on its head node."""
    resources: dict[str, float] = Field(default_factory=dict, examples=[{"osmosis": 1}])
    """Further resources of each job: one unit per node spreads jobs over the nodes."""


class GateAddress(Table):
    """`[gate]` of `worker.toml`."""

    advertise_url: str = Field(default="", examples=["https://gpu-box.example.com/gate/{port}"])
    """URL at which rollout servers elsewhere reach this machine's training jobs; `{port}` is a job's own."""
    listen: str = Field(default="127.0.0.1:0", examples=["127.0.0.1:7577"])
    """host:port that a job listens on for them; port 0: a free one for each job."""
    insecure_http: bool = False
    """Plain http to and from other machines: whoever is in between reads conversations and keys."""

    @field_validator("advertise_url")
    @classmethod
    def _url(cls, value: str) -> str:
        if value and not is_http(value.replace(PORT, "1")):
            raise ValueError("must be an http:// or https:// URL, such as https://gpu-box.example.com/gate/{port}")
        return value.rstrip("/")

    @field_validator("listen")
    @classmethod
    def _check_place(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise ValueError("must be host:port, such as 127.0.0.1:7577")
        return value

    @property
    def host(self) -> str:
        return parse_host(self.listen)

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])

    @property
    def template(self) -> str:
        return self.advertise_url.replace(PORT, "1")

    def refuse(self) -> None:
        """Raise UsageError for an unreachable address, or where conversations would cross a network unencrypted."""
        if not self.advertise_url and not is_loopback(self.host):
            raise UsageError(
                f"jobs are to listen on {self.listen}, and nobody is told how to get there",
                hint="say --advertise-url https://NAME, at which a proxy with TLS passes on to it",
            )
        if PORT not in self.advertise_url and self.advertise_url and self.port == 0:
            raise UsageError(
                f"{self.advertise_url} stands for one port, and each job listens on a free one",
                hint=f"name it, as in --gate-listen {self.host}:7577, or put {PORT} into the URL",
            )
        self.refuse_plain(self.template)

    def refuse_plain(self, url: str) -> None:
        if url and not self.insecure_http and not url.startswith("https://") and not is_loopback(url):
            raise UsageError(
                f"{url} is plain http: whoever is in between reads conversations and keys",
                hint="put TLS before it and give its https:// address; in a network you trust: --insecure-http",
            )


class WorkerConfig(Table):
    """`osmosis worker start --config worker.toml`. A flag wins over its key."""

    executor: ExecutorName = "local"
    """The place of jobs: this machine, or wherever a scheduler puts them."""
    max_jobs: int = Field(default=1, ge=1)
    """Jobs at once, also in a scheduler's queue."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels that runs can ask for."""
    queue_s: float = Field(default=QUEUE_S, gt=0, le=30 * QUEUE_S)
    """Seconds that a job may wait in a scheduler's queue; then its ticket expires, and it is taken out."""
    poll_s: float = Field(default=5, gt=0)
    """Seconds between questions to a scheduler, each about all jobs."""
    job_command: Annotated[list[str], BeforeValidator(_split_words)] = Field(
        default_factory=list, examples=[["apptainer", "exec", "osmosis.sif", "python3", "-m", "osmosis.jobs"]]
    )
    """The command that starts a job where the scheduler runs it; empty: the Python of the worker, on a disk that both
    see."""
    node_dir: str = ""
    """Folder of jobs where the scheduler runs them, such as "$HOME/osmosis" with variables of that machine; empty: that
    of the worker, on a disk that both see."""
    resources: Resources | None = None
    """Resources for all jobs together; None: as the scheduler says."""
    gate: GateAddress = Field(default_factory=GateAddress)
    """How rollout servers on other machines reach training jobs here."""
    command: CommandOptions | None = None
    slurm: SlurmOptions = Field(default_factory=SlurmOptions)
    ray: RayOptions = Field(default_factory=RayOptions)

    @classmethod
    def across(cls, written: dict[str, object]) -> Iterator[InitErrorDetails]:
        if written.get("executor") == "command" and "command" not in written:
            yield broken_at("says nothing of the scheduler", "add [command] with start, list and end", "executor")
