"""The words of the language: what they build, and what they refuse where it is written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramet.lang import (
    UnsupportedError,
    assistant,
    gen,
    gen_int,
    gen_string,
    greedy_token_selection,
    image,
    select,
    separate_reasoning,
    token_length_normalized,
    total_likelihood,
    unconditional_likelihood_normalized,
    video,
)
from ramet.lang.ir import Gen, Image, RoleBegin, RoleEnd, Select, Text, leaves
from ramet.runtime.protocol import Ebnf, InvalidRequestError, JsonSchema, Regex, SamplingParams, StructuralTag

generate: Any = gen
"""For calls that a type checker would refuse already."""
choose: Any = select


def only(node: Any) -> Any:
    return next(iter(leaves(node)))[0]


def test_every_option_of_gen_reaches_the_params() -> None:
    node = only(
        gen(
            "a",
            7,
            min_tokens=2,
            n=3,
            stop=["x", "y"],
            stop_token_ids=5,
            stop_regex="z+",
            include_stop=True,
            temperature=0.1,
            top_p=0.2,
            top_k=3,
            min_p=0.4,
            frequency_penalty=0.5,
            presence_penalty=0.6,
            repetition_penalty=1.7,
            logit_bias={1: 2.0},
            seed=8,
            ignore_eos=True,
            logprobs=9,
            skip_special_tokens=False,
            regex="r",
            priority=10,
        )
    )
    assert node.params == SamplingParams(
        max_tokens=7,
        min_tokens=2,
        n=3,
        stop=("x", "y"),
        stop_token_ids=(5,),
        stop_regex=("z+",),
        include_stop=True,
        temperature=0.1,
        top_p=0.2,
        top_k=3,
        min_p=0.4,
        frequency_penalty=0.5,
        presence_penalty=0.6,
        repetition_penalty=1.7,
        logit_bias={1: 2.0},
        seed=8,
        ignore_eos=True,
        logprobs=9,
        skip_special_tokens=False,
        grammar=Regex("r"),
    )
    assert node.priority == 10
    assert len(node.given) == 20


def test_none_is_not_given() -> None:
    node = only(gen("a", None, temperature=None, stop=None, regex=None, choices=None, priority=None))
    assert node == Gen("a", SamplingParams(max_tokens=None))


def test_sglangs_words_for_log_probabilities() -> None:
    assert only(gen(return_logprob=True)).params.logprobs == 0
    assert only(gen(return_logprob=True, top_logprobs_num=4)).params.logprobs == 4
    assert only(gen(return_logprob=False)).params.logprobs is None
    assert only(gen(logprobs=2, top_logprobs_num=4)).params.logprobs == 2


def test_constraints() -> None:
    assert only(gen(ebnf="root ::= x")).params.grammar == Ebnf("root ::= x")
    assert only(gen(structural_tag="{}")).params.grammar == StructuralTag("{}")
    assert only(gen(json_schema={}, strict=False)).params.grammar == JsonSchema("{}", strict=False)
    assert only(gen(json_schema=list[int], strict=False)).params.grammar == JsonSchema(
        '{"type":"array","items":{"type":"integer"}}', strict=False
    )
    with pytest.raises(InvalidRequestError, match="strict=False but no json_schema"):
        gen(regex="a", strict=False)
    assert only(gen(structural_tag={"a": 1})).params.grammar == StructuralTag('{"a":1}')
    assert only(gen_int("a", 5, stop_regex=["x"])).params.stop_regex == ("x", "[^-+0-9]")
    assert only(gen_string("a", 5)).params.max_tokens == 5
    assert only(gen(dtype=float)).parse("2.") == 2.0


def test_choices_are_a_select() -> None:
    assert gen("a", choices=["x", "y"]) == select("a", ["x", "y"])
    assert gen(
        "a", choices=["x"], temperature=0.5, seed=1, priority=2, choices_method="greedy_token_selection"
    ) == (Select("a", ("x",), "greedy", 0.5, 1, 2))
    methods = (
        token_length_normalized,
        greedy_token_selection,
        unconditional_likelihood_normalized,
        total_likelihood,
    )
    kinds = [select("a", ("x",), choices_method=method).normalization for method in methods]
    assert kinds == ["token_length", "greedy", "unconditional", "sum"]


@pytest.mark.parametrize(
    ("make", "field", "words"),
    [
        (lambda: generate("a", max_token=3), "max_token", "did you mean 'max_tokens'"),
        (lambda: generate("a", use_beam=3), "use_beam", "known are choices, "),
        (lambda: generate(""), "name", "name is ''"),
        (lambda: generate(3), "name", "name is 3"),
        (lambda: generate("a", 0), "max_tokens", "max_tokens is 0"),
        (lambda: generate("a", 2, min_tokens=3), "min_tokens", r"at most max_tokens \(2\)"),
        (lambda: generate("a", temperature="hot"), "temperature", "temperature is 'hot'"),
        (lambda: generate("a", stop=3), "stop", "a string or a list of strings"),
        (lambda: generate("a", stop_token_ids="x"), "stop_token_ids", "a token id or a list"),
        (lambda: generate("a", stop_regex="("), "stop_regex", "not a valid regular expression"),
        (lambda: generate("a", priority="high"), "priority", "a whole number"),
        (
            lambda: generate("a", dtype=int, regex="x"),
            "dtype",
            "dtype and regex; one answer takes one constraint",
        ),
        (lambda: generate("a", dtype=list), "dtype", "int, float, str or bool"),
        (lambda: generate("a", regex=3), "regex", "must be a string"),
        (lambda: generate("a", choices=["x"], max_tokens=3), "max_tokens", "takes no max_tokens"),
        (lambda: generate("a", choices_method="sum"), "choices", "choices is None"),
        (lambda: choose("a", []), "choices", "choices is empty"),
        (lambda: choose("a", "xy"), "choices", "must be a list of strings"),
        (lambda: choose("a", ["x", ""]), "choices", "has ''"),
        (lambda: choose("a", ["x", 3]), "choices", "has 3"),
        (lambda: choose("a", ["x", "y", "x"]), "choices", "'x' twice"),
        (lambda: choose("a", ["x"], temperature=-1), "temperature", "temperature is -1"),
        (lambda: choose("a", ["x"], temperature=None), "temperature", "temperature is None"),
        (lambda: choose("a", ["x"], choices_method="best"), "choices_method", "token_length_normalized, "),
        (lambda: separate_reasoning("x", "gpt"), "model_type", "deepseek-r1"),
        (lambda: image("/no/such/file"), "image", "cannot be read"),
        (lambda: image(b"text"), "image", "PNG, JPEG"),
    ],
)
def test_mistakes_are_named_where_they_are_written(make: Callable[[], object], field: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as raised:
        make()
    assert raised.value.field == field


def test_roles() -> None:
    assert [leaf for leaf, _ in leaves("a" + assistant("b"))] == [
        Text("a"),
        RoleBegin("assistant"),
        Text("b"),
        RoleEnd("assistant"),
    ]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n1", "png"),
        (b"\xff\xd8\xff1", "jpeg"),
        (b"GIF89a", "gif"),
        (b"BM1", "bmp"),
        (b"RIFF1234WEBP", "webp"),
    ],
)
def test_images(tmp_path: Path, content: bytes, kind: str) -> None:
    path = tmp_path / "image"
    path.write_bytes(content)
    assert image(path) == image(str(path)) == image(content)
    assert image(content).url.startswith(f"data:image/{kind};base64,")
    assert image("https://x.org/a.png") == Image("https://x.org/a.png")


def test_what_no_backend_has_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"video 'a\.mp4': no backend takes videos; say 8 frames"):
        video("a.mp4", 8)
    with pytest.raises(InvalidRequestError, match="lora is ''; it must be the name of an adapter"):
        gen("x", lora="")
    with pytest.raises(InvalidRequestError, match="gen with choices takes no lora"):
        gen("x", choices=["a"], lora="sql")
