from __future__ import annotations

from typing import Any

import pytest

from osmosis.viewer.conversation import LONG, turns


def test_a_tool_result_is_named_after_its_call() -> None:
    call = {"id": "c1", "function": {"name": "add", "arguments": '{"a":1}'}}
    shown = turns([{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c1", "content": "2"}])
    assert (shown[0].calls[0].name, shown[0].calls[0].arguments) == ("add", '{"a": 1}')
    assert (shown[1].tool, shown[1].text) == ("add", "2")


def test_arguments_that_are_no_json_are_shown_as_they_came() -> None:
    call = turns([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{oops"}}]}])[0].calls[0]
    assert (call.arguments, call.valid) == ("{oops", False)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("plain", "plain"),
        (
            [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "http://x"}}],
            "a\n[image: http://x]",
        ),
        ([{"type": "odd", "x": 1}], '{\n  "type": "odd",\n  "x": 1\n}'),
        ({"any": "thing"}, '{\n  "any": "thing"\n}'),
        (["bare"], "bare"),
    ],
)
def test_content_of_every_shape(content: Any, text: str) -> None:
    assert turns([{"role": "user", "content": content}])[0].text == text


def test_a_tools_json_is_indented_and_a_persons_is_not() -> None:
    shown = turns([{"role": "tool", "content": '{"a":1}'}, {"role": "user", "content": '{"a":1}'}])
    assert [turn.text for turn in shown] == ['{\n  "a": 1\n}', '{"a":1}']


def test_reasoning_refusals_and_older_calls() -> None:
    shown = turns(
        [
            {"role": "assistant", "reasoning_content": "hm", "refusal": "no", "function_call": {"name": "f"}},
            {},
        ]
    )
    assert (shown[0].reasoning, shown[0].note, shown[0].calls[0].name) == ("hm", "refused: no", "f")
    assert shown[1].role == "unknown"


def test_long_texts_start_folded() -> None:
    assert turns([{"role": "user", "content": "x" * (LONG + 1)}])[0].long


def test_images_sources_and_thoughts_of_any_provider() -> None:
    inline, elsewhere = "data:image/png;base64,AAAA", "https://example.test/x.png"
    cited = {"type": "url_citation", "url_citation": {"url": "https://example.test/a", "title": "A page"}}
    scripted = {"type": "url_citation", "url_citation": {"url": "javascript:alert(1)", "title": "Bad"}}
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in (inline, elsewhere, "data:text/html;,x")]
    shown = turns(
        [
            {"role": "user", "content": [{"type": "text", "text": "look"}, *parts]},
            {"role": "assistant", "content": "ok", "annotations": [cited, scripted], "images": [parts[0]]},
            {"role": "assistant", "thinking_blocks": [{"type": "thinking", "thinking": "hm"}], "content": "so"},
        ]
    )
    assert (shown[0].images, shown[1].images) == ([inline], [inline])
    assert "[image]\n[image: https://example.test/x.png]" in shown[0].text
    assert [(one.title, one.url) for one in shown[1].sources] == [("A page", "https://example.test/a"), ("Bad", "")]
    assert shown[2].reasoning == "hm"
