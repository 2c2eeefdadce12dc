"""A provider's own variables become arguments of the call; nothing else of what is given does."""

from __future__ import annotations

import os

import pytest

from osmosis.llm import open_model
from osmosis.llm.litellm_model import LiteLLMModel
from osmosis.llm.providers import arguments_for
from osmosis.records.run.plan import ModelSpec


@pytest.mark.parametrize(
    ("provider", "variables", "arguments"),
    [
        ("anthropic", {"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "other"}, {"api_key": "k"}),
        ("gemini", {"GOOGLE_API_KEY": "b", "GEMINI_API_KEY": "a"}, {"api_key": "a"}),
        ("some-new", {"SOME_NEW_API_KEY": "k"}, {"api_key": "k"}),
        (
            "bedrock",
            {"AWS_ACCESS_KEY_ID": "i", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "r", "AWS_REGION_NAME": "n"},
            {"aws_access_key_id": "i", "aws_secret_access_key": "s", "aws_region_name": "n"},
        ),
        ("azure", {"AZURE_API_KEY": "k", "AZURE_API_BASE": "u"}, {"api_key": "k", "api_base": "u"}),
        ("anthropic", {"LD_PRELOAD": "x", "ANTHROPIC_API_KEY": ""}, {}),
    ],
)
def test_arguments(provider: str, variables: dict[str, str], arguments: dict[str, str]) -> None:
    assert arguments_for(provider, variables) == arguments


@pytest.mark.slow
def test_a_model_is_asked_with_them_and_the_environment_stays_without() -> None:
    pytest.importorskip("litellm")
    spec = ModelSpec(name="anthropic/claude-3-5-sonnet-latest", kind="litellm")
    model = open_model(spec, provider_variables={"ANTHROPIC_API_KEY": "the-key"})
    assert isinstance(model, LiteLLMModel)
    assert model.access == {"api_key": "the-key"}
    assert "the-key" not in os.environ.values()
    named = open_model(spec, api_key="named", provider_variables={"ANTHROPIC_API_KEY": "the-key"})
    assert isinstance(named, LiteLLMModel)
    assert named.access == {"api_key": "named"}
