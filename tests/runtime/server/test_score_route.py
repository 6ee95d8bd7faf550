"""Labels behind a query and an item: their probabilities, and what is refused."""

import math
from typing import Any

import pytest

from tests.runtime.engine.fake_engine import logprob_of
from tests.runtime.server.speaking_server import Served, error_of

LABELS = [89, 78]


def ask(server: Served, **fields: Any) -> dict[str, Any]:
    body = {"query": "Is it so? ", "items": ["yes", "no"], "label_token_ids": LABELS, **fields}
    answer = server.post("/v1/score", body)
    assert answer.status_code == 200, answer.text
    scored: dict[str, Any] = answer.json()
    return scored


def probability(token_id: int) -> float:
    """In the model that the server runs, whatever is before it."""
    return math.exp(logprob_of(token_id).chosen.logprob)


def test_probabilities_of_the_labels(server: Served) -> None:
    scored = ask(server)
    assert scored["object"] == "scoring"
    expected = [probability(label) for label in LABELS]
    assert scored["scores"] == [pytest.approx(expected), pytest.approx(expected)]
    assert scored["usage"]["prompt_tokens"] == len("Is it so? yes") + len("Is it so? no")


def test_among_the_labels_alone(server: Served) -> None:
    (scores, _) = ask(server, apply_softmax=True)["scores"]
    total = sum(probability(label) for label in LABELS)
    assert scores == pytest.approx([probability(label) / total for label in LABELS])


def test_ids_one_item_and_the_item_first(server: Served) -> None:
    assert len(ask(server, items="only one")["scores"]) == 1
    by_ids = ask(server, query=list(b"a query"), items=[list(b"one"), list(b"two")], item_first=True)
    assert len(by_ids["scores"]) == 2
    assert by_ids["usage"]["total_tokens"] == 2 * len("a queryone")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"items": []}, "items"),
        ({"items": [[1, 2]]}, "items"),
        ({"query": [1]}, "items"),
        ({"label_token_ids": []}, "label_token_ids"),
        ({"label_token_ids": [1] * 2000}, "label_token_ids"),
        ({"label_token_ids": [100000]}, "label_token_ids"),
        ({"label_token_ids": "yes"}, "label_token_ids"),
        ({"items": ["a" * 3000]}, "items"),
        ({"timeout": 0}, "timeout"),
        ({"apply": True}, "apply"),
    ],
)
def test_what_is_wrong_is_named(server: Served, fields: dict[str, Any], param: str) -> None:
    body = {"query": "Is it so? ", "items": ["yes"], "label_token_ids": LABELS, **fields}
    assert str(error_of(server.post("/v1/score", body), 400)["param"]).startswith(param)


@pytest.mark.parametrize("body", [{"text_1": "a", "text_2": ["b"]}, {"queries": "a", "documents": ["b"]}])
def test_a_relevance_of_two_texts_is_refused_by_name(server: Served, body: dict[str, Any]) -> None:
    error = error_of(server.post("/v1/score", body), 400)
    assert error["code"] == "unsupported_parameter"
    assert "label_token_ids" in error["message"]
    assert "/v1/embeddings" in error["message"]
