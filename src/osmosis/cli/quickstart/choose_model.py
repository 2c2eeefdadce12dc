"""Which model the quickstart evaluates: the one named, else one whose key is here, else the offline stand-in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from osmosis.base.net import is_http
from osmosis.cli import prompts
from osmosis.cli.context import AppContext
from osmosis.errors import UsageError, ValidationError
from osmosis.workspace.config_file import PROVIDER_KEYS

STAND_IN = "offline/calculator"
STAND_IN_NOTE = f"{STAND_IN} is a stand-in, not a language model: fixed rules with deliberate mistakes"
SMALL_MODELS = {
    "OPENAI_API_KEY": "openai/gpt-5-mini",
    "ANTHROPIC_API_KEY": "anthropic/claude-haiku-4-5",
    "GEMINI_API_KEY": "gemini/gemini-2.5-flash",
    "XAI_API_KEY": "xai/grok-4-fast",
    "OPENROUTER_API_KEY": "openrouter/openai/gpt-5-mini",
}


@dataclass(frozen=True)
class ModelChoice:
    """The model, and what it needs."""

    name: str
    base_url: str | None = None
    secret: str | None = None
    """The variable that holds its key."""

    @property
    def note(self) -> str:
        if self.name == STAND_IN:
            return STAND_IN_NOTE
        return f"{self.name} at {self.base_url}" if self.base_url else self.name

    def flags(self) -> list[str]:
        """For `osmosis rollout new`."""
        flags = [] if self.name == STAND_IN else ["--model", self.name]
        if self.base_url:
            flags += ["--base-url", self.base_url]
            flags += ["--api-key-env", self.secret] if self.secret else []
        return flags


def choose_model(
    ctx: AppContext, *, model: str | None, base_url: str | None, api_key_env: str | None, yes: bool
) -> ModelChoice:
    """From the flags, the variables that are set, or a question."""
    environ = ctx.environ
    if base_url and not is_http(base_url):
        raise ValidationError(f"--base-url {base_url} is not an http URL", hint="for example http://127.0.0.1:8000/v1")
    if api_key_env and not environ.get(api_key_env):
        raise ValidationError(f"the variable {api_key_env} is not set", hint=f"export {api_key_env}=...")
    if base_url:
        if not model:
            raise UsageError("--base-url needs --model: the model's name at that endpoint")
        return ModelChoice(model, base_url, api_key_env)
    if model:
        return ModelChoice(model, None, api_key_env or provider_secret(model, environ))
    present = {name: small for name, small in SMALL_MODELS.items() if environ.get(name)}
    if yes or not ctx.interactive:
        return next((ModelChoice(small, None, name) for name, small in present.items()), ModelChoice(STAND_IN))
    return _asked(ctx, present)


def provider_secret(model: str, environ: Mapping[str, str]) -> str | None:
    """The variable that this provider's key is in. Raises when it is known and not set."""
    if model.startswith("offline/"):
        return None
    provider = model.partition("/")[0] if "/" in model else "openai"
    name = PROVIDER_KEYS.get(provider)
    if name and not environ.get(name):
        raise ValidationError(f"{model} needs {name}, which is not set", hint=f"export {name}=..., or remove --model")
    return name


def _asked(ctx: AppContext, present: Mapping[str, str]) -> ModelChoice:
    choices = [(small, f"{small} (key from {name})") for name, small in present.items()]
    choices += [(STAND_IN, f"{STAND_IN}: a stand-in, not a language model; needs no network and no key")]
    choices += [("endpoint", "an OpenAI-compatible endpoint ...")]
    picked = prompts.choose(ctx, "Which model do you want to evaluate?", choices, flag="--model")
    if picked == "endpoint":
        url = prompts.ask(ctx, "Base URL, up to /v1", flag="--base-url", default="http://127.0.0.1:8000/v1")
        return ModelChoice(prompts.ask(ctx, "Name of the model at that endpoint", flag="--model"), url)
    return ModelChoice(picked, None, next((name for name, small in present.items() if small == picked), None))
