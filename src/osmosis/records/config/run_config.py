"""`configs/eval/*.toml` and `configs/training/*.toml` as types, which check a file, a request and a job's plan alike.
Every rule is here: on its field, or in `across` for several keys."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from osmosis.records.base import Record, Table, at_key, broken_at, broken_rule, iterate_errors
from osmosis.records.config.advanced import TABLES, EvalAdvanced, TrainingAdvanced
from osmosis.records.config.experiment import Experiment, Mix, Name, TrainingExperiment
from osmosis.records.config.export import CURVES, TRACES, Export
from osmosis.records.run.rows import ReducerName

if TYPE_CHECKING:
    from typing import Self


ENV_NAME = re.compile(r"^[A-Z_][A-Z0-9_]*\Z")
SECRET_NAME = re.compile(r"^[A-Z][A-Z0-9_]*\Z")
RESERVED_ENV = "_OSMOSIS_"


def _renamed(name: str, rule: re.Pattern[str], example: str) -> str:
    better = "".join(c if c.isalnum() and c.isascii() else "_" for c in name).upper().strip("_")
    return f"rename it, for example {better if rule.match(better) else example}"


def _env_name(name: str) -> str:
    if name.startswith(RESERVED_ENV):
        problem = f"{name} is reserved: names starting with {RESERVED_ENV} are reserved for the platform"
        raise broken_rule(problem, "choose another name")
    if not ENV_NAME.match(name):
        problem = f"{name!r} is not a variable name: use capitals, digits and _, not starting with a digit"
        raise broken_rule(problem, _renamed(name, ENV_NAME, "LOG_LEVEL"))
    return name


def _secret_name(name: str) -> str:
    if not SECRET_NAME.match(name):
        problem = f"{name!r} is not a secret name: use capitals, digits and _, starting with a letter"
        raise broken_rule(problem, _renamed(name, SECRET_NAME, "OPENAI_API_KEY"))
    return name


def _address(text: str) -> str:
    if not re.fullmatch(r"[^@\s<>,;]+@[^@\s<>,;]+", text):
        raise broken_rule(f"{text!r} is not an e-mail address", "team@example.com")
    return text


EnvName = Annotated[str, AfterValidator(_env_name)]
SecretName = Annotated[str, AfterValidator(_secret_name)]


class Notify(Table):
    """`[notify]`: on the platform, who is told when a run ends, and of alarms of a training. See howto-team.md."""

    when: Literal["always", "failed"] = "always"
    """`failed`: only of an end by failure or by a limit such as a budget, and of alarms."""
    webhook_secret: SecretName | None = Field(default=None, examples=["NOTIFY_URL"])
    """Secret whose value is a URL: each message is posted there as JSON."""
    signing_secret: SecretName | None = Field(default=None, examples=["NOTIFY_KEY"])
    """Secret with which these posts are signed, as Standard Webhooks says. Default: they are not."""
    slack_secret: SecretName | None = Field(default=None, examples=["SLACK_URL"])
    """Secret whose value is the URL of an incoming webhook of Slack, or of what takes the same JSON."""
    email: list[Annotated[str, AfterValidator(_address)]] = Field(
        default_factory=list, max_length=20, examples=[["team@example.com"]]
    )
    """Addresses, on a platform whose operator set `OSMOSIS_SMTP_URL`."""

    def secret_names(self) -> list[str]:
        return [name for name in (self.webhook_secret, self.signing_secret, self.slack_secret) if name]

    @classmethod
    def across(cls, written: dict[str, object]) -> Iterator[InitErrorDetails]:
        if not any(written.get(key) for key in ("webhook_secret", "slack_secret", "email")):
            yield broken_at("[notify] has nobody to tell", 'slack_secret = "SLACK_URL"', "slack_secret")
        if written.get("signing_secret") and not written.get("webhook_secret"):
            yield broken_at("only the posts of webhook_secret are signed", "remove it", "signing_secret")


def parse_interval(text: str) -> timedelta:
    match = re.fullmatch(r"([1-9]\d{0,4})([mhd])", text)
    interval = timedelta(minutes=int(match[1]) * {"m": 1, "h": 60, "d": 1440}[match[2]]) if match else timedelta()
    if not timedelta() < interval <= timedelta(days=90):
        raise broken_rule(f"{text!r} is no time from 1m to 90d: minutes, hours or days", "1d")
    return interval


def _interval(text: str) -> str:
    parse_interval(text)
    return text


class Schedule(Table):
    """`[schedule]`: on the platform, submit this evaluation again and again. See howto-team.md."""

    every: Annotated[str, AfterValidator(_interval)] = Field(examples=["1d"])
    """From one run to the next, each of the newest synced commit: minutes, hours or days, as in 30m, 12h or 7d."""
    name: str | None = Field(default=None, min_length=1, max_length=100, examples=["nightly"])
    """A submit replaces the schedule of this name. Default: the rollout's name."""


class Program(Table):
    """`[program]`: what surrounds the program of `command`. Each rollout gets copies of the folders."""

    folder: Name | None = Field(default=None, examples=["rollouts/my-rollout/folder"])
    """Working folder to begin with, relative to the workspace: a repository, an `AGENTS.md`. Default: an empty one."""
    home: Name | None = Field(default=None, examples=["rollouts/my-rollout/home"])
    """HOME to begin with, relative to the workspace: skills, MCP servers and settings. Default: an empty one."""
    env: list[EnvName] = Field(default_factory=list, examples=[["GITHUB_TOKEN"]])
    """Secrets of `[secrets]` that the program gets, besides all of `[env]`."""


class Evaluation(Table):
    """`[evaluation]`: how much to run, and what passes."""

    limit: int | None = Field(default=None, ge=1, examples=[20])
    """Run the first N rows. Default: a random 10 % sample on the platform, all rows locally."""
    held_out_of: str | None = Field(default=None, min_length=1, examples=["multiply-1"])
    """On the platform: run only rows that this training run did not train on, its `test_rows` if it has any."""
    n: int = Field(default=1, ge=1, le=1000)
    """Attempts per row."""
    batch_size: int = Field(default=1, ge=1, le=4096)
    """Maximum number of concurrent rollouts. Without it, those of a local evaluation adapt, beginning with 8."""
    pass_threshold: float = 1.0
    """Lowest score at which a rollout passes."""
    score_min: float | None = None
    """Lowest score that the grader gives. With `score_max` set as well, intervals stay between the two."""
    score_max: float | None = None
    """Highest score that the grader gives."""
    reduce: list[ReducerName] = Field(default_factory=list, examples=[["median", "at-least-2"]])
    """More figures over a row's attempts: `mean`, `median`, `mode`, `max`, `at-least-K`, `pass@K`, `pass^K`."""
    group_by: list[str] = Field(default_factory=list, examples=[["level"]])
    """Dataset columns: the report also shows every score for each value of these columns."""
    agent_workflow_timeout_s: float = Field(default=450.0, gt=0)
    """Time limit of the agent, in seconds per rollout."""
    grader_timeout_s: float = Field(default=150.0, gt=0)
    """Time limit of the grader, in seconds per rollout."""
    max_retries: int = Field(default=0, ge=0, le=100)
    """Run a rollout that failed up to this many times again before its failure is stored; all tries are paid for."""
    max_cost: float | None = Field(default=None, gt=0, examples=[5.0])
    """Start no more rollouts once the run has cost this many USD, including judges and all of its jobs."""
    max_tokens_total: int | None = Field(default=None, ge=1)
    """The same, for tokens."""
    max_tokens_per_rollout: int | None = Field(default=None, ge=1)
    """Before a model call, end a rollout that has used this many tokens, and score it. Default: no limit."""
    max_cost_per_rollout: float | None = Field(default=None, gt=0)
    """The same, for its cost in USD."""
    max_time_per_rollout_s: float | None = Field(default=None, gt=0)
    """End a rollout after its agent has run this many seconds, and score it; the timeout above fails it instead."""
    max_turns_per_rollout: int | None = Field(default=None, ge=1)
    """End a rollout after this many model calls, and score it."""
    max_messages_per_rollout: int | None = Field(default=None, ge=1)
    """End a rollout before it sends more messages than this, and score it."""

    def score_bounds(self) -> dict[str, tuple[float, float]]:
        if self.score_min is None or self.score_max is None:
            return {}
        return {"reward": (self.score_min, self.score_max)}

    @field_validator("score_max")
    @classmethod
    def _above(cls, most: float | None, info: ValidationInfo) -> float | None:
        least = info.data.get("score_min")
        if (most is None) != (least is None):
            raise broken_rule("score_min and score_max are given together", "score_min = 0.0 and score_max = 1.0")
        if most is not None and least is not None and not least < most:
            raise broken_rule(f"score_max must be above score_min: {least:g}, {most:g}", f"score_max = {least + 1:g}")
        return most

    @field_validator("reduce")
    @classmethod
    def _enough_attempts(cls, names: list[str], info: ValidationInfo) -> list[str]:
        for name in names:
            least = int(re.split("[-@^]", name)[-1]) if name[-1].isdigit() else 1
            if least > info.data.get("n", least):
                raise broken_rule(f"{name} needs {least} attempts per row", f"n = {least}")
        return names


class Training(Table):
    """`[training]`: the optimisation."""

    lr: float = Field(default=1e-5, gt=0, le=1)
    """Learning rate. 1e-5 to 1e-4 suit an adapter, 1e-6 suits `tune = "full"`."""
    total_epochs: int = Field(default=1, ge=1)
    """Passes over the dataset."""
    n_samples_per_prompt: int = Field(default=8, ge=1)
    """Rollouts per prompt (the GRPO group)."""
    rollout_batch_size: int = Field(default=32, ge=1)
    """Prompts per step. The default is at most the rows that the dataset has for training."""
    max_prompt_length: int = Field(default=8192, ge=1)
    """Tokens. The default is at most half of what a base model in the platform's store can read."""
    max_response_length: int = Field(default=8192, ge=1)
    """Tokens. The default is as that of `max_prompt_length`."""
    agent_workflow_timeout_s: float = Field(default=450.0, gt=0)
    """Time limit of the agent, in seconds per rollout."""
    grader_timeout_s: float = Field(default=150.0, gt=0)
    """Time limit of the grader, in seconds per rollout."""


class Sampling(Table):
    """`[sampling]`: how the policy is sampled while training."""

    rollout_temperature: float = Field(default=1.0, ge=0, le=2)
    """Sampling temperature."""
    rollout_top_p: float = Field(default=1.0, gt=0, le=1)
    """Top-p threshold."""


class Checkpoints(Table):
    """`[checkpoints]`: when to evaluate and save."""

    eval_interval: int = Field(default=10, ge=1)
    """Evaluate every N rollout steps."""
    checkpoint_save_freq: int = Field(default=20, ge=1)
    """Save a LoRA checkpoint every N rollout steps."""
    keep: int = Field(default=5, ge=1)
    """Keep the newest N checkpoints, in addition to the best and the last."""


def _older_secrets(table: object) -> PydanticCustomError | None:
    if not isinstance(table, Mapping):
        return None
    names = [key for key, value in table.items() if isinstance(value, str) and key != "required"]
    if not names:
        return None
    new = ", ".join(f'"{name}"' for name in [*_texts(table.get("required")), *names])
    fix = f"write [secrets] with required = [{new}], and register each with: osmosis secret set NAME"
    return broken_rule(f"the older form of secrets ({names[0]} = ...) is no longer read", fix, code="old-secrets")


def _texts(value: object) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def get_table(data: Mapping[str, object], name: str) -> dict[str, object]:
    table = data.get(name)
    if isinstance(table, Record):
        return table.to_dict()
    return table if isinstance(table, dict) else {}


class Secrets(Table):
    """`[secrets]`: names of secrets, never values."""

    required: list[SecretName] = Field(examples=[["OPENAI_API_KEY"]])
    """Names registered with `osmosis secret set`. Each becomes an environment variable with that name."""

    @classmethod
    def across(cls, written: dict[str, object]) -> Iterator[InitErrorDetails]:
        names = _texts(written.get("required"))
        for name in dict.fromkeys(names):
            if names.count(name) > 1:
                yield broken_at(f"{name} is listed twice", f"keep one {name}", "required")
        if older := _older_secrets(written):
            yield at_key(older)
            accepted = {key: value for key, value in written.items() if key == "required" or not isinstance(value, str)}
            written.clear()
            written.update({"required": [], **accepted})


def section(table: str) -> str:
    return table if table in ("secrets", "agents", "mix") else f"{table}_config"


def _unknown_section(name: str, sections: Mapping[str, str]) -> InitErrorDetails:
    near = next(iter(get_close_matches(name, sections, 1)), None)
    fix = f"did you mean {near}?" if near else f"known sections: {', '.join(sections)}"
    return broken_at("unknown section", fix, name, code="unknown-section", near=near)


def _taken_out(tables: dict[str, object], secret_values: list[InitErrorDetails]) -> dict[str, str]:
    if not isinstance(tables["secrets"], dict):
        return {}
    secrets = dict(tables["secrets"])
    provided = secrets.pop("provided", None) or {}
    if not isinstance(provided, dict) or not all(isinstance(value, str) for value in provided.values()):
        secret_values.append(broken_at("must map names to text", 'write {"NAME": "value"}', "secrets", "provided"))
        provided = {}
    required = secrets.get("required") or []
    if isinstance(required, list):
        required = [*required, *(name for name in provided if name not in required)]
    tables["secrets"] = {**secrets, "required": required}
    return provided


class Submittable(Table):
    """A config that is sent to a platform, table by table."""

    kind: ClassVar[str]

    def secret_names(self) -> list[str]:
        secrets: Secrets | None = getattr(self, "secrets", None)
        return list(secrets.required) if secrets else []

    def to_request(self, provided: Mapping[str, str] | None = None) -> dict[str, object]:
        written = self.model_dump(mode="json", exclude_none=True, exclude_unset=True)
        body = {section(table): content for table, content in written.items() if content and table != "secrets"}
        if provided or self.secret_names():
            body["secrets"] = {"required": self.secret_names(), **({"provided": dict(provided)} if provided else {})}
        return body

    @classmethod
    def from_request(cls, body: Mapping[str, object]) -> tuple[Self, dict[str, str]]:
        """Return the config of a submit and its secret values, whose names count as required.

        Raise pydantic's ValidationError with every problem, located by the names of the TOML file; unknown keys of
        `[advanced]` are problems."""
        sections = {section(table): table for table in cls.model_fields}
        errors = [_unknown_section(name, sections) for name in body if name not in sections]
        tables = {sections[name]: content for name, content in body.items() if name in sections and content is not None}
        tables.setdefault("experiment", {})
        tables.setdefault("secrets", {})
        provided = _taken_out(tables, errors)
        if "advanced" in cls.model_fields:
            errors += TABLES[cls.kind].unread(tables.get("advanced"))
        try:
            config = cls.model_validate(tables, strict=True)
        except ValidationError as error:
            errors += iterate_errors(error)
        if errors:
            raise ValidationError.from_exception_data(cls.__name__, errors)
        return config, provided


def list_environment_tables(data: Mapping[str, object]) -> dict[str, dict[str, object]]:
    mix = data.get("mix")
    tables = {str(number): table for number, table in enumerate(mix if isinstance(mix, list) else ())}
    return {"experiment": get_table(data, "experiment"), **{f"mix.{at}": get_table(tables, at) for at in tables}}


class _Config(Submittable):
    experiment: Experiment
    program: Program | None = None
    advanced: EvalAdvanced | TrainingAdvanced
    env: dict[EnvName, str] = Field(default_factory=dict)
    """Non-secret environment variables of the rollout."""
    export: Export | None = None
    notify: Notify | None = None

    @property
    def environments(self) -> Mapping[str, Experiment]:
        """Return what the run runs, by its table."""
        return {"experiment": self.experiment}

    @classmethod
    def across(cls, written: dict[str, object]) -> Iterator[InitErrorDetails]:
        secrets, env, advanced = (get_table(written, name) for name in ("secrets", "env", "advanced"))
        required = _texts(secrets.get("required"))
        for name in dict.fromkeys(required):
            if name in env:
                fix = "remove it from [env] if it is secret, otherwise from [secrets]"
                yield broken_at(f"{name} is in both [env] and [secrets].required", fix, "env", name)
        program = get_table(written, "program")
        named = [("advanced", name, advanced.get(name)) for name in ("api_key_env", "rollout_server_key_env")]
        for table, name, key in [*named, *(("program", "env", name) for name in _texts(program.get("env")))]:
            if isinstance(key, str) and key not in required:
                fix = f"write required = [{', '.join(json.dumps(n) for n in [*required, key])}]"
                yield broken_at(f"{key} must be listed in [secrets].required", fix, table, name)
        if any(program.values()) and not any(
            table.get("command") for table in list_environment_tables(written).values()
        ):
            yield broken_at("[program] has no effect without command in [experiment]", "remove it", "program")
        if older := _older_secrets(get_table(written, "rollout").get("secrets")):
            yield at_key(older, "rollout", "secrets")
            del written["rollout"]
            written.setdefault("secrets", {"required": []})


class EvalConfig(_Config):
    """`configs/eval/*.toml`. `[secrets]` is mandatory; write `required = []` when there is none."""

    kind: ClassVar[str] = "eval"
    advanced: EvalAdvanced = Field(default_factory=EvalAdvanced)
    evaluation: Evaluation = Field(default_factory=Evaluation)
    schedule: Schedule | None = None
    secrets: Secrets

    @property
    def schedule_name(self) -> str:
        return (self.schedule and self.schedule.name) or self.experiment.rollout


class TrainingConfig(_Config):
    """`configs/training/*.toml`."""

    kind: ClassVar[str] = "training"
    experiment: TrainingExperiment
    mix: list[Mix] = Field(default_factory=list, max_length=16)
    advanced: TrainingAdvanced = Field(default_factory=TrainingAdvanced)
    training: Training = Field(default_factory=Training)
    sampling: Sampling = Field(default_factory=Sampling)
    checkpoints: Checkpoints = Field(default_factory=Checkpoints)
    secrets: Secrets | None = None

    @property
    def environments(self) -> Mapping[str, TrainingExperiment]:
        mixed = {f"mix.{at}": self.experiment.model_copy(update=dict(table)) for at, table in enumerate(self.mix)}
        return {"experiment": self.experiment, **mixed}

    def of(self, environment: TrainingExperiment) -> Self:
        """Return the config of a run of this environment alone."""
        return self.model_copy(update={"experiment": environment, "mix": []})

    @classmethod
    def across(cls, written: dict[str, object]) -> Iterator[InitErrorDetails]:
        yield from super().across(written)
        yield from cls._mixture(written)
        servers = get_table(written, "advanced").get("rollout_servers")
        if isinstance(servers, list) and get_table(written, "experiment").get("command") is not None:
            problem = "a command runs beside the trainer, not on servers elsewhere"
            yield broken_at(problem, "rollout_servers = 1", "advanced", "rollout_servers")
        for target in _texts(get_table(written, "export").get("targets")):
            if (tool := target.partition(":")[0]) in TRACES:
                problem = f"{tool} takes traces of evaluations, and a training run has curves"
                yield broken_at(problem, f"one of {', '.join(CURVES)}", "export", "targets")
        if get_table(written, "advanced").get("method", "grpo") != "grpo":
            return
        if get_table(written, "training").get("n_samples_per_prompt") == 1:
            problem = "one rollout per prompt has nothing to be compared with"
            yield broken_at(problem, "n_samples_per_prompt = 8", "training", "n_samples_per_prompt")
        if get_table(written, "sampling").get("rollout_temperature") == 0:
            problem = "at temperature 0 the rollouts of a prompt are all the same"
            yield broken_at(problem, "rollout_temperature = 1.0", "sampling", "rollout_temperature")

    @classmethod
    def _mixture(cls, written: Mapping[str, object]) -> Iterator[InitErrorDetails]:
        first, *others = list_environment_tables(written).values()
        advanced, labels = get_table(written, "advanced"), [first.get("name") or first.get("rollout")]
        for at, table in enumerate(others):
            label = table.get("name") or table.get("rollout")
            if label in labels and label:
                problem = f"two environments are called {label}"
                yield broken_at(problem, f'name = "{label}-{at + 2}"', "mix", str(at), "name")
            labels.append(label)
        if others and advanced.get("method", "grpo") != "grpo":
            problem = "[[mix]] has no effect on a run that learns from an earlier one"
            yield broken_at(problem, 'remove it, or write method = "grpo"', "advanced", "method")
        if others and isinstance(advanced.get("rollout_servers"), list):
            problem = "rollout servers elsewhere have one rollout, and [[mix]] names several"
            yield broken_at(problem, "rollout_servers = 1", "advanced", "rollout_servers")
