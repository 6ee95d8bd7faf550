"""The native routes, read back with the records that clients read them with."""

import math

import msgspec
import pytest

from ramet.runtime.protocol import Choice, InvalidRequestError, PromptTooLongError, SamplingParams, wire
from ramet.runtime.tokenizer import TokenizerSpec
from tests.runtime.server.speaking_server import Served, error_of, event_data, spec

GREEDY = SamplingParams(temperature=0, max_tokens=30, logprobs=0)


def generate(server: Served, **fields: object) -> wire.GenerateResponse:
    request = wire.GenerateRequest(**fields)  # type: ignore[arg-type]
    response = server.post("/generate", msgspec.to_builtins(request))
    assert response.status_code == 200, response.text
    return msgspec.json.decode(response.content, type=wire.GenerateResponse)


def test_prompts_in_three_forms(server: Served) -> None:
    whole = generate(server, input=wire.Input(text="say:text"), params=GREEDY)
    assert (whole.outputs[0].text, whole.outputs[0].finish_reason) == ("text", "stop")
    assert whole.prompt_token_ids == list(b"say:text")
    assert whole.outputs[0].token_ids == [*b"text", 257]
    assert len(whole.outputs[0].logprobs or []) == 5
    ids = generate(server, input=wire.Input(token_ids=list(b"say:ids")), params=GREEDY)
    assert ids.outputs[0].text == "ids"
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "say:on"}]
    chat = wire.ChatOptions(continue_final_message=True)
    continued = generate(server, input=wire.Input(messages=messages, chat=chat), params=GREEDY)
    assert continued.outputs[0].text == "on"


def test_a_stream_folds_to_the_whole(server: Served) -> None:
    params = SamplingParams(seed=5, max_tokens=12, n=3, prompt_logprobs=1, logprobs=1)
    request = wire.GenerateRequest(input=wire.Input(text="no script"), params=params, stream=True)
    response = server.post("/generate", msgspec.to_builtins(request))
    *data, last = event_data(response.text)
    assert last == wire.STREAM_END
    read = [wire.decode_event(one) for one in data]
    whole = generate(server, input=wire.Input(text="no script"), params=params)
    for output in whole.outputs:
        mine = [event for event in read if event.index == output.index]
        assert "".join(event.text for event in mine) == output.text
        assert [token for event in mine for token in event.token_ids] == output.token_ids
        assert [entry for event in mine for entry in event.logprobs or []] == output.logprobs
        assert mine[-1].finish_reason is output.finish_reason
        assert mine[-1].stats is not None
    assert next(event.prompt_logprobs for event in read if event.prompt_logprobs) == whole.prompt_logprobs


def test_errors_are_those_of_an_engine_in_process(server: Served) -> None:
    def raised(body: dict[str, object], status: int = 400) -> Exception:
        detail = error_of(server.post("/generate", body), status)
        return wire.as_error(msgspec.convert(detail, wire.ErrorDetail))

    wrong = raised({"input": {"text": "x"}, "params": {"temperature": -1}})
    assert isinstance(wrong, InvalidRequestError)
    assert wrong.field == "temperature"
    assert isinstance(raised({"input": {"text": "x" * 3000}}), PromptTooLongError)
    assert isinstance(raised({"input": {}}), InvalidRequestError)
    assert "token_ids" in str(raised({"input": {"text": "a", "token_ids": [1]}}))
    assert "request failed" not in str(raised({"input": {"text": "row error"}}, 500))
    assert error_of(server.post("/generate", {"input": {"text": "x"}, "model": "other"}), 404)


def test_scores(server: Served) -> None:
    request = wire.ScoreRequest(input=wire.Input(text="a prompt"), continuations=["yes", [120]])
    response = server.post("/score", msgspec.to_builtins(request))
    scores = msgspec.json.decode(response.content, type=wire.ScoreResponse).scores
    assert [one.token_ids for one in scores] == [list(b"yes"), [120]]
    assert sum(scores[1].token_logprobs) == pytest.approx(-0.62)
    assert all(math.isfinite(value) for one in scores for value in one.token_logprobs)
    # More than the queue has room for: they are one request.
    many = {"input": {"text": "x"}, "continuations": [[1 + i % 250, 1 + i // 250] for i in range(500)]}
    assert len(server.post("/score", many).json()["scores"]) == 500
    messages: list[wire.Message] = [{"role": "user", "content": "hi"}]
    chat = wire.ScoreRequest(input=wire.Input(messages=messages), continuations=["a"])
    assert server.post("/score", msgspec.to_builtins(chat)).status_code == 200
    assert error_of(server.post("/score", {"input": {"text": "x"}, "continuations": []}), 400)
    assert error_of(server.post("/score", {"input": {"text": "x"}, "continuations": [""]}), 400)


def test_text_to_ids_and_back(server: Served) -> None:
    def token_ids(**body: object) -> list[int]:
        return list(server.post("/tokenize", body).json()["token_ids"])

    assert token_ids(text="a</s>") == [97, 257]
    assert token_ids(text="a</s>", allow_special=False) == list(b"a</s>")
    assert server.post("/detokenize", {"token_ids": [97, 257]}).json() == {"text": "a</s>"}
    skipped = server.post("/detokenize", {"token_ids": [97, 257], "skip_special_tokens": True})
    assert skipped.json() == {"text": "a"}
    assert (
        "token_ids[1] is 999" in error_of(server.post("/detokenize", {"token_ids": [1, 999]}), 400)["message"]
    )


def test_messages_as_the_model_reads_them(server: Served) -> None:
    body = {"messages": [{"role": "user", "content": "</s>"}, {"role": "user", "content": "b"}]}
    read = server.post("/encode_chat", body).json()
    assert read["text"] == "user: </s></s>user: b"
    assert read["token_ids"].count(257) == 1
    assert error_of(server.post("/encode_chat", {"messages": []}), 400)["param"] == "messages"


def test_the_tokenizer_as_data(server: Served) -> None:
    response = server.get("/tokenizer")
    assert response.headers["content-type"] == "application/msgpack"
    assert msgspec.msgpack.decode(response.content, type=TokenizerSpec) == spec()


def test_constraints_travel(server: Served) -> None:
    params = msgspec.structs.replace(GREEDY, grammar=Choice(("yes", "no")))
    assert generate(server, input=wire.Input(text="x"), params=params).outputs[0].text in ("yes", "no")


@pytest.mark.parametrize(
    ("fields", "param", "ours"),
    [
        ({"text": "x"}, "text", "input.text"),
        ({"input_ids": [1]}, "input_ids", "input.token_ids"),
        ({"text": "x", "sampling_params": {"max_new_tokens": 2}}, "text", "input.text"),
        ({"input": {"text": "x"}, "sampling_params": {}}, "sampling_params", "params"),
        ({"input": {"text": "x"}, "return_logprob": True}, "return_logprob", "params.logprobs"),
        ({"input": {"text": "x"}, "rid": "r"}, "rid", "request_id"),
        (
            {"input": {"text": "x"}, "params": {"max_new_tokens": 2}},
            "params.max_new_tokens",
            "params.max_tokens",
        ),
        ({"input": {"text": "x"}, "params": {"regex": "a"}}, "params.regex", "params.grammar"),
    ],
)
def test_names_of_another_server_are_told_in_ours(
    server: Served, fields: dict[str, object], param: str, ours: str
) -> None:
    error = error_of(server.post("/generate", fields), 400)
    assert error["param"] == param
    assert f"here it is {ours}" in error["message"]
