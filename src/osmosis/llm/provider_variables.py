"""The variables under which providers are known: to users and judges by name, and as arguments of LiteLLM's calls.

A process that asks models for somebody else (a job) gets keys of its own through a pipe and must not put them where
every library and every child process reads: the environment. What is not in the tables below follows LiteLLM's rule,
`<PROVIDER>_API_KEY`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

KEYS: Mapping[str, tuple[str, ...]] = {
    "cohere_chat": ("COHERE_API_KEY", "CO_API_KEY"),
    "fireworks_ai": ("FIREWORKS_API_KEY", "FIREWORKS_AI_API_KEY", "FIREWORKSAI_API_KEY"),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "huggingface": ("HUGGINGFACE_API_KEY", "HF_TOKEN"),
    "nvidia_nim": ("NVIDIA_NIM_API_KEY", "NVIDIA_API_KEY"),
    "text-completion-openai": ("OPENAI_API_KEY",),
    "together_ai": ("TOGETHERAI_API_KEY", "TOGETHER_API_KEY", "TOGETHER_AI_API_KEY"),
}
"""Provider -> the names of its key, the likeliest first."""
ACCESS: Mapping[str, Mapping[str, str]] = {
    "azure": {"AZURE_API_BASE": "api_base", "AZURE_API_VERSION": "api_version", "AZURE_AD_TOKEN": "azure_ad_token"},
    "bedrock": {
        "AWS_ACCESS_KEY_ID": "aws_access_key_id",
        "AWS_SECRET_ACCESS_KEY": "aws_secret_access_key",
        "AWS_SESSION_TOKEN": "aws_session_token",
        "AWS_REGION_NAME": "aws_region_name",
        "AWS_REGION": "aws_region_name",
    },
    "openai": {"OPENAI_ORGANIZATION": "organization"},
    "vertex_ai": {
        "VERTEXAI_PROJECT": "vertex_project",
        "VERTEXAI_LOCATION": "vertex_location",
        "VERTEXAI_CREDENTIALS": "vertex_credentials",
    },
}
"""Provider -> variable -> argument, for what is more than one key."""


DEFAULT_API_KEY_ENV: dict[str, str] = {
    "openai": "OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "xai": "XAI_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "google": "GEMINI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "cerebras": "CEREBRAS_API_KEY",
    "azure": "AZURE_API_KEY",
    "bedrock": "AWS_ACCESS_KEY_ID",
    "vertex_ai": "GOOGLE_APPLICATION_CREDENTIALS",
}
"""Which variable holds a provider's key, where the name does not follow from the provider's."""


def key_variable(provider: str) -> str:
    """The variable that holds a provider's key: from the table, else `<PROVIDER>_API_KEY`."""
    known = DEFAULT_API_KEY_ENV.get(provider)
    return known or f"{re.sub(r'[^A-Z0-9]', '_', provider.upper())}_API_KEY"


def arguments_for(provider: str, variables: Mapping[str, str]) -> dict[str, str]:
    """The arguments of a call to this provider that these variables hold."""
    names = KEYS.get(provider, (f"{provider.upper().replace('-', '_')}_API_KEY",))
    key = next((variables[name] for name in names if variables.get(name)), None)
    found = {"api_key": key} if key else {}
    for name, argument in ACCESS.get(provider.removesuffix("_text"), {}).items():
        if value := variables.get(name):
            found.setdefault(argument, value)
    return found
