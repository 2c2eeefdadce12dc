from typing import Any

import pytest

from osmosis.viewer.conversation import MAX_RESULT_LINES, MAX_UNFOLDED, build_turns, fold_same, render_markdown
from osmosis.viewer.page import pretty


def test_a_tool_result_is_named_after_its_call() -> None:
    call = {"id": "c1", "function": {"name": "add", "arguments": '{"a":1}'}}
    shown = build_turns(
        [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c1", "content": "2"}]
    )
    assert (shown[0].calls[0].name, shown[0].calls[0].arguments) == ("add", '{"a": 1}')
    assert (shown[1].tool, shown[1].text) == ("add", "2")


def test_arguments_that_are_no_json_are_shown_as_they_came() -> None:
    call = build_turns([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{oops"}}]}])[
        0
    ].calls[0]
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
        ([{"type": "odd", "x": 1}], '{"type": "odd", "x": 1}'),
        ({"any": "thing"}, '{"any": "thing"}'),
        (["bare"], "bare"),
    ],
)
def test_content_of_every_shape(content: Any, text: str) -> None:
    assert build_turns([{"role": "user", "content": content}])[0].text == text


def test_a_tools_json_is_compact_and_a_persons_is_as_it_came() -> None:
    turns = build_turns([{"role": "tool", "content": '{"a":1}'}, {"role": "user", "content": '{"a":1}'}])
    assert [turn.text for turn in turns] == ['{"a": 1}', '{"a":1}']
    wide = {"rows": [{"id": number, "name": "x" * 30} for number in range(3)], "total": 3}
    lines = pretty(wide).splitlines()
    assert (len(lines), lines[2]) == (8, '    {"id": 0, "name": "' + "x" * 30 + '"},')


@pytest.mark.parametrize(
    ("result", "failed"),
    [
        ("Error: no such table", True),
        ("OperationalError: near FROM", True),
        ("Traceback (most recent call last):", True),
        ('{"error": "timeout"}', True),
        ('{"error": null, "rows": []}', False),
        ("errors were found in 3 of 9 files", False),
        ("42", False),
    ],
)
def test_what_a_failed_tool_says_is_marked(result: str, failed: bool) -> None:
    call = {"id": "c1", "function": {"name": "sql", "arguments": '{"query": "select 1", "limit": 5}'}}
    answer = {"role": "tool", "tool_call_id": "c1", "content": result}
    turns = build_turns([{"role": "assistant", "tool_calls": [call]}, answer])
    assert (turns[0].error, turns[0].calls[0].result.error) == (failed, failed)
    (block,) = turns[0].calls[0].code
    assert (block.name, turns[0].calls[0].arguments) == ("query", '{"limit": 5}')
    assert '<span class="t-k">select</span>' in block.html


def test_of_a_long_conversation_the_middle_starts_folded_but_for_what_failed() -> None:
    messages = [{"role": "user", "content": f"message {number}"} for number in range(30)]
    messages[12] = {"role": "tool", "content": "Error: no"}
    opened = [number for number, turn in enumerate(build_turns(messages)) if turn.open]
    assert opened == [0, 1, 2, 12, 25, 26, 27, 28, 29]
    assert all(turn.open for turn in build_turns(messages[:16]))


def test_code_of_a_message_is_highlighted_and_escaped() -> None:
    html = render_markdown("```python\nprint('<b>')\n```")
    assert "&lt;b&gt;" in html
    assert 'class="t-nb">print' in html
    assert render_markdown("```nolanguage\n<b>\n```").count("&lt;b&gt;") == 1


def test_reasoning_refusals_and_older_calls() -> None:
    shown = build_turns(
        [{"role": "assistant", "reasoning_content": "hm", "refusal": "no", "function_call": {"name": "f"}}, {}]
    )
    assert (shown[0].reasoning, shown[0].note, shown[0].calls[0].name) == ("hm", "refused: no", "f")
    assert shown[1].role == "unknown"


def test_long_texts_start_folded() -> None:
    assert build_turns([{"role": "user", "content": "x" * (MAX_UNFOLDED + 1)}])[0].long


def test_images_sources_and_thoughts_of_any_provider() -> None:
    inline, elsewhere = "data:image/png;base64,AAAA", "https://example.test/x.png"
    cited = {"type": "url_citation", "url_citation": {"url": "https://example.test/a", "title": "A page"}}
    scripted = {"type": "url_citation", "url_citation": {"url": "javascript:alert(1)", "title": "Bad"}}
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in (inline, elsewhere, "data:text/html;,x")]
    shown = build_turns(
        [
            {"role": "user", "content": [{"type": "text", "text": "look"}, *parts]},
            {"role": "assistant", "content": "ok", "annotations": [cited, scripted], "images": [parts[0]]},
            {"role": "assistant", "thinking_blocks": [{"type": "thinking", "thinking": "hm"}], "content": "so"},
        ]
    )
    assert (shown[0].images, shown[1].images) == ([inline], [inline])
    assert shown[0].text.startswith("look\n[image: https://example.test/x.png]")
    assert [(one.title, one.url) for one in shown[1].sources] == [("A page", "https://example.test/a"), ("Bad", "")]
    assert shown[2].reasoning == "hm"


def test_a_result_of_many_short_lines_is_long() -> None:
    few, many = build_turns([{"role": "tool", "content": "1\n" * lines} for lines in (3, MAX_RESULT_LINES)])
    assert (few.long, many.long, many.size) == (False, True, f"{MAX_RESULT_LINES + 1} lines")


def test_beside_each_other_only_what_differs_is_unfolded() -> None:
    def conversation(id_: str, result: str) -> list[dict[str, Any]]:
        call = {"id": id_, "function": {"name": "sql", "arguments": '{"query": "select 1"}'}}
        talk = [{"role": "user", "content": "go"}, {"role": "assistant", "tool_calls": [call]}]
        return [*talk, {"role": "tool", "tool_call_id": id_, "content": result}, {"role": "user", "content": "bye"}]

    left, right, other = (build_turns(conversation(*each)) for each in (("a", "1"), ("b", "1"), ("c", "2")))
    fold_same(left, right)
    assert all(turn.same and not turn.open for turn in (*left, *right)), "ids of calls make no difference"
    fold_same(left, other)
    assert [turn.same for turn in left] == [True, False, False, True]
    assert [turn.open for turn in other] == [False, True, True, False]
