"""Prices from the table without importing LiteLLM; waits from headers."""

import sys

import pytest

from osmosis.llm.providers import Price, price_of, table_price
from osmosis.records.run.plan import ModelSpec


def test_reads_the_table_without_loading_the_library():
    loaded = "litellm" in sys.modules
    price = price_of(ModelSpec.parse("openai/gpt-4o-mini"))
    assert price is not None
    assert 0 < price.prompt < price.completion
    assert ("litellm" in sys.modules) == loaded


def test_an_unknown_model_has_no_price_and_a_local_one_neither():
    assert price_of(ModelSpec.parse("nobody/knows-this")) is None
    assert price_of(ModelSpec.parse("openai/gpt-4o-mini"), local=True) is None


def test_cached_tokens_cost_their_own_price():
    assert Price(2.0, 3.0, 0.5).of(10, 4, cached_tokens=6) == pytest.approx(4 * 2 + 6 * 0.5 + 4 * 3)


def test_what_is_written_to_a_cache_has_its_own_price():
    price = Price(prompt=3e-6, completion=15e-6, cached=0.3e-6, written=3.75e-6)
    assert price.of(1000, 10, cached_tokens=200, cache_write_tokens=500) == pytest.approx(
        300 * 3e-6 + 200 * 0.3e-6 + 500 * 3.75e-6 + 10 * 15e-6
    )
    assert Price(1e-6, 0.0).of(1000, 0, 0, 500) == pytest.approx(1000e-6)
    claude = table_price("anthropic/claude-sonnet-4-5")
    assert claude is not None
    assert claude.written == pytest.approx(1.25 * claude.prompt)
