"""Which variable holds the key of a provider, as users and judges name providers. Reads no variable."""

from __future__ import annotations

import re

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
