"""The HTTP model against a real loopback server: what is sent, what is read, what is repeated."""

import pytest

from osmosis.dialects.chat import completion_body
from osmosis.errors import ModelError, ValidationError
from osmosis.llm import ChatRequest, open_model, probe
from osmosis.records.run.plan import ModelSpec, Retry
from support.endpoint import ModelEndpoint, Reply, text_reply

QUICK = Retry(max_attempts=3, base_delay_s=0.001, max_delay_s=0.002, rate_limit_budget_s=5)
ASK = [{"role": "user", "content": "What is 2 * 3?"}]


async def ask(endpoint, request=None, *, retry=QUICK, timeout_s=5.0, key=None, **spec):
    model = open_model(
        ModelSpec.parse("org/my-model", base_url=endpoint.url, **spec), api_key=key, retry=retry, timeout_s=timeout_s
    )
    try:
        return await model.complete(request or ChatRequest(ASK))
    finally:
        await model.close()


async def test_sends_name_and_parameters_verbatim_and_needs_no_key():
    with ModelEndpoint() as endpoint:
        request = ChatRequest(ASK, params={"top_k": 4, "temperature": 0.5})
        await ask(endpoint, request, params={"temperature": 1, "min_p": 0.1, "stop": ["x"]})
    body = endpoint.requests[0]
    assert body["model"] == "org/my-model"
    assert {k: body[k] for k in ("temperature", "min_p", "stop", "top_k")} == {
        "temperature": 0.5,
        "min_p": 0.1,
        "stop": ["x"],
        "top_k": 4,
    }
    assert "Authorization" not in endpoint.headers[0]


async def test_extra_headers_are_sent_as_headers_and_not_in_the_body():
    with ModelEndpoint() as endpoint:
        await ask(endpoint, params={"extra_headers": {"X-Team": "a"}})
    assert {name.lower(): value for name, value in endpoint.headers[0].items()}["x-team"] == "a"
    assert "extra_headers" not in endpoint.requests[0]


async def test_sends_the_key_as_bearer():
    with ModelEndpoint() as endpoint:
        await ask(endpoint, key="k-123")
    assert endpoint.headers[0]["Authorization"] == "Bearer k-123"


async def test_a_seed_is_moved_on_by_the_attempt_so_that_attempts_differ():
    with ModelEndpoint() as endpoint:
        for attempt in range(3):
            request = ChatRequest(ASK, params={"seed": 7}, attempt=attempt, rollout_id="r")
            await ask(endpoint, request, params={"seed": 7})
    assert [body["seed"] for body in endpoint.requests] == [7, 8, 9]


async def test_reads_usage_token_ids_and_cost():
    reply = text_reply("hi", prompt_tokens=1_000_000, completion_tokens=500_000)
    reply.body["choices"][0].update(token_ids=[1, 2], logprobs={"content": [{"logprob": -0.5}, {"logprob": -1.0}]})
    reply.body["prompt_token_ids"] = [9]
    reply.body["usage"]["prompt_tokens_details"] = {"cached_tokens": 3}
    with ModelEndpoint(lambda body, n: reply) as endpoint:
        spec = ModelSpec(name="m", kind="openai", base_url=endpoint.url, price=(2.0, 4.0))
        model = open_model(spec, retry=QUICK)
        done = await model.complete(ChatRequest(ASK))
        await model.close()
    assert (done.token_ids, done.logprobs, done.prompt_token_ids) == ([1, 2], [-0.5, -1.0], [9])
    assert done.usage.cached_tokens == 3
    assert done.usage.cost_usd == pytest.approx(4.0)


async def test_the_providers_own_cost_wins():
    reply = text_reply("hi")
    reply.body["usage"]["cost"] = 0.125
    with ModelEndpoint(lambda body, n: reply) as endpoint:
        assert (await ask(endpoint)).usage.cost_usd == 0.125


async def test_drops_the_empty_fields_servers_add():
    reply = text_reply("hi")
    reply.body["choices"][0]["message"].update(refusal=None, tool_calls=[], function_call=None)
    with ModelEndpoint(lambda body, n: reply) as endpoint:
        assert (await ask(endpoint)).message == {"role": "assistant", "content": "hi"}


@pytest.mark.parametrize(
    ("status", "text", "category"),
    [
        (401, "bad key", "auth"),
        (403, "no", "auth"),
        (404, "no such model", "model_not_found"),
        (400, "unknown parameter", "bad_request"),
        (400, "maximum context length is 10", "context_length"),
        (429, '{"error": {"code": "insufficient_quota", "message": "pay"}}', "auth"),
    ],
)
async def test_hopeless_errors_are_asked_once(status, text, category):
    with ModelEndpoint(lambda body, n: Reply(text, status)) as endpoint, pytest.raises(ModelError) as caught:
        await ask(endpoint)
    assert caught.value.category == category
    assert caught.value.status == status
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize(
    ("bad", "category"),
    [
        (Reply("boom", 500), "server_error"),
        (Reply("boom", 503), "server_error"),
        (Reply("<html>", 200), "bad_response"),
        (Reply({"choices": []}), "bad_response"),
        (Reply({"choices": [{"message": "text"}]}), "bad_response"),
        (Reply({"choices": [{"message": {"content": 3}}]}), "bad_response"),
        (Reply({"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": "many"}}), "bad_response"),
        (Reply(cut=True), "connection"),
        (Reply({"error": {"code": 502, "message": "upstream died"}}), "server_error"),
        (Reply({"choices": [{"message": {"content": "The ans"}, "finish_reason": "error"}]}), "server_error"),
        (Reply({"choices": [{"message": {"content": ""}, "error": {"code": 504}}]}), "timeout"),
        (Reply(parts=[b'data: {"error": {"code": 503, "message": "busy"}}\n\n']), "server_error"),
    ],
)
async def test_passing_errors_are_repeated_and_then_given_up_in_their_category(bad, category):
    with ModelEndpoint(lambda body, n: bad if n < 2 else None) as endpoint:
        assert (await ask(endpoint)).retries == 2
    with ModelEndpoint(lambda body, n: bad) as endpoint, pytest.raises(ModelError, match="after 3") as caught:
        await ask(endpoint)
    assert caught.value.category == category
    assert len(endpoint.requests) == 3


async def test_a_call_that_hangs_times_out():
    with ModelEndpoint(lambda body, n: Reply(hang=True)) as endpoint, pytest.raises(ModelError) as caught:
        await ask(endpoint, retry=Retry(max_attempts=1), timeout_s=0.05)
    assert caught.value.category == "timeout"


async def test_nobody_listening_is_a_connection_error():
    with ModelEndpoint() as endpoint:
        pass
    with pytest.raises(ModelError) as caught:
        await ask(endpoint)
    assert caught.value.category == "connection"


async def test_rate_limits_cost_no_attempts_and_tell_the_deadline():
    waits = []
    limited = Reply("slow down", 429, {"retry-after": "0.01"})
    with ModelEndpoint(lambda body, n: limited if n < 5 else None) as endpoint:
        done = await ask(endpoint, ChatRequest(ASK, on_wait=waits.append), retry=Retry(max_attempts=1))
    assert done.retries == 5
    assert len(waits) >= 5
    assert all(wait >= 0.01 for wait in waits[:1])


async def test_rate_limits_are_given_up_after_the_budget():
    limited = Reply("slow down", 429, {"retry-after": "0.02"})
    with ModelEndpoint(lambda body, n: limited) as endpoint, pytest.raises(ModelError, match="waiting") as caught:
        await ask(endpoint, retry=Retry(rate_limit_budget_s=0.05))
    assert caught.value.category == "rate_limit"


async def test_the_probe_fails_at_once_and_keeps_parameters():
    with ModelEndpoint(lambda body, n: Reply("who?", 401)) as endpoint:
        model = open_model(ModelSpec.parse("m", base_url=endpoint.url, params={"max_tokens": 500}))
        with pytest.raises(ModelError):
            await probe(model)
        await model.close()
    assert endpoint.requests[0]["max_tokens"] == 16
    assert len(endpoint.requests) == 1


async def test_the_probe_names_the_models_of_an_endpoint_that_does_not_have_this_one():
    with ModelEndpoint(lambda body, n: Reply("no such model", 404)) as endpoint:
        endpoint.models = ["llama", "qwen3-mini", "qwen3"]
        model = open_model(ModelSpec.parse("qwen4", base_url=endpoint.url))
        with pytest.raises(ModelError) as caught:
            await probe(model)
        await model.close()
    listed = "--model qwen3 (in a config: model_path); the endpoint has: qwen3, qwen3-mini, llama"
    assert caught.value.hint == listed
    assert endpoint.paths == ["/v1/chat/completions", "/v1/models"]


def test_a_model_of_the_platform_is_not_asked_here():
    with pytest.raises(ValidationError, match="only the platform asks") as caught:
        open_model(ModelSpec.parse("osmosis/tiny"))
    assert "osmosis model serve tiny" in caught.value.hint


async def test_the_probe_lets_a_busy_endpoint_pass():
    with ModelEndpoint(lambda body, n: Reply("busy", 429, {"retry-after": "60"})) as endpoint:
        model = open_model(ModelSpec.parse("m", base_url=endpoint.url))
        await probe(model)
        await model.close()


async def test_cached_answers_are_per_attempt_and_per_repeat(tmp_path):
    with ModelEndpoint(lambda body, n: text_reply(f"answer {n}")) as endpoint:

        async def session():
            model = open_model(ModelSpec.parse("m", base_url=endpoint.url), cache_dir=tmp_path)
            texts = []
            for attempt in (0, 1):
                for _ in range(2):
                    request = ChatRequest(ASK, rollout_id=f"r{attempt}", attempt=attempt)
                    texts.append((await model.complete(request)).message["content"])
            await model.close()
            return texts

        first = await session()
        again = await session()
    assert len(set(first)) == 4
    assert again == first
    assert len(endpoint.requests) == 4


async def test_the_whole_reply_is_kept():
    reply = text_reply("hi", prompt_tokens=100, completion_tokens=20)
    second = {"index": 1, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "length"}
    reply.body["choices"].append(second)
    reply.body |= {"system_fingerprint": "fp_1"}
    reply.body["usage"] |= {
        "prompt_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 30},
        "completion_tokens_details": {"reasoning_tokens": 7},
    }
    with ModelEndpoint(lambda body, n: reply) as endpoint:
        done = await ask(endpoint, ChatRequest(ASK, params={"n": 2, "extra_body": {"top_k": 3, "n": 2}}))
    assert [choice["message"]["content"] for choice in done.choices] == ["hi", "hello"]
    assert done.choices[1]["finish_reason"] == "length"
    assert (done.usage.reasoning_tokens, done.usage.cache_write_tokens, done.fingerprint) == (7, 30, "fp_1")
    sent = endpoint.requests[0]
    assert (sent["top_k"], sent["n"], "extra_body" in sent) == (3, 2, False)
    body = completion_body(done)
    assert [choice["message"]["content"] for choice in body["choices"]] == ["hi", "hello"]
    assert body["system_fingerprint"] == "fp_1"
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 7}


def test_extra_body_cannot_change_whom_is_asked():
    model = open_model(ModelSpec.parse("m", base_url="http://127.0.0.1:9/v1"))
    body = model.body(ChatRequest(ASK, params={"extra_body": {"model": "other", "messages": []}}))
    assert (body["model"], body["messages"]) == ("m", ASK)


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}])
async def test_no_word_of_usage_is_not_free(usage):
    reply = text_reply("hi")
    reply.body["usage"] = usage
    with ModelEndpoint(lambda body, n: reply) as endpoint:
        spec = ModelSpec(name="m", kind="openai", base_url=endpoint.url, price=(1.0, 2.0))
        model = open_model(spec)
        assert (await model.complete(ChatRequest(ASK))).usage.cost_usd is None
        await model.close()


@pytest.mark.parametrize(
    ("code", "category"), [(429, "rate_limit"), ("rate_limit_exceeded", "rate_limit"), (401, "auth")]
)
async def test_an_error_with_status_200_counts_as_its_code(code, category):
    bad = Reply({"error": {"code": code, "message": "no"}})
    quick = Retry(max_attempts=1, base_delay_s=0.001, max_delay_s=0.002, rate_limit_budget_s=0)
    with ModelEndpoint(lambda body, n: bad) as endpoint, pytest.raises(ModelError) as caught:
        await ask(endpoint, retry=quick)
    assert caught.value.category == category


@pytest.mark.parametrize(
    "error", [{"code": "content_filter"}, {"innererror": {"code": "ResponsibleAIPolicyViolation"}}]
)
async def test_a_prompt_that_a_filter_refused_is_a_filtered_answer(error):
    with ModelEndpoint(lambda body, n: Reply({"error": {"message": "filtered", **error}}, 400)) as endpoint:
        done = await ask(endpoint)
    assert (done.finish_reason, done.message["content"]) == ("content_filter", "")


HI = '{"choices": [{"message": {"role": "assistant", "content": "hé"}, "finish_reason": "stop", "logprobs": %s}]}'
CHUNK = '{"choices": [{"delta": {"role": "assistant", "content": "hé"}, "finish_reason": "stop"}]}'


@pytest.mark.parametrize(
    ("reply", "logprobs"),
    [
        (Reply(b"\xef\xbb\xbf" + (HI % "null").encode()), None),
        (Reply((HI % "null").encode("latin-1"), headers={"content-type": "application/json; charset=latin-1"}), None),
        (Reply((HI % '{"content": [{"token": "h", "logprob": NaN}]}').encode()), None),
        (Reply((HI % '{"content": [{"token": "h", "logprob": -Infinity}]}').encode()), [-9999.0]),
        (Reply(parts=[f"data: {CHUNK}\n\n".encode(), b"data: [DONE]\n\n"]), None),
    ],
    ids=["byte order mark", "latin-1", "NaN", "-Infinity", "events"],
)
async def test_reads_what_openais_client_reads(reply, logprobs):
    with ModelEndpoint(lambda body, n: reply) as endpoint:
        done = await ask(endpoint)
    assert (done.message["content"], done.logprobs) == ("hé", logprobs)


async def test_a_function_call_of_old_servers_is_a_tool_call():
    call = {"name": "add", "arguments": "{}"}
    reply = Reply({"choices": [{"message": {"role": "assistant", "content": None, "function_call": call}}]})
    with ModelEndpoint(lambda body, n: reply) as endpoint:
        message = (await ask(endpoint)).message
    assert [made["function"] for made in message["tool_calls"]] == [call]
    assert message["function_call"] == call


async def test_follows_a_redirect_on_the_same_host_and_no_other():
    with (
        ModelEndpoint() as new,
        ModelEndpoint(lambda body, n: Reply("", 307, {"location": f"{new.url}/chat/completions"})) as old,
    ):
        assert (await ask(old, key="secret")).message["content"]
        assert new.headers[0]["Authorization"] == "Bearer secret"
    away = Reply("", 307, {"location": "http://localhost:1/v1/chat/completions"})
    with ModelEndpoint(lambda body, n: away) as endpoint, pytest.raises(ModelError, match="HTTP 307"):
        await ask(endpoint)
