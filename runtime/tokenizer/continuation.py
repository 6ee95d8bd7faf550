"""A tokenizer for text that continues other text."""

import json
from typing import Any

import msgspec


class _Front(msgspec.Struct):
    """The parts of a tokenizer that may change a text's beginning."""

    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None


def puts_leading_space(tokenizer_json: str) -> bool:
    """Whether the tokenizer, in the `tokenizers` library's format, puts a space in front of a text."""
    front = msgspec.json.decode(tokenizer_json, type=_Front)
    return any(step["type"] == "Prepend" for step in _steps(front.normalizer, "normalizers")) or any(
        (step["type"] == "Metaspace" and step.get("prepend_scheme") != "never")
        or (step["type"] == "ByteLevel" and step.get("add_prefix_space") is not False)
        for step in _steps(front.pre_tokenizer, "pretokenizers")
    )


def without_leading_space(tokenizer_json: str) -> str:
    """The same tokenizer, in the `tokenizers` library's format, that puts no space in front of a text.

    Takes out the ways to put it there: the Prepend normalizer, Metaspace's prepend scheme, ByteLevel's prefix.
    """
    content = json.loads(tokenizer_json)
    content["normalizer"] = _without_prepend(content.get("normalizer"))
    for step in _steps(content.get("pre_tokenizer"), "pretokenizers"):
        if step["type"] == "Metaspace":
            step["prepend_scheme"] = "never"
        elif step["type"] == "ByteLevel":
            step["add_prefix_space"] = False
    return json.dumps(content, ensure_ascii=False)


def _without_prepend(normalizer: dict[str, Any] | None) -> dict[str, Any] | None:
    kept = [step for step in _steps(normalizer, "normalizers") if step["type"] != "Prepend"]
    return {"type": "Sequence", "normalizers": kept} if kept else None


def _steps(part: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    if part is None:
        return []
    steps: list[dict[str, Any]] = part[name] if part["type"] == "Sequence" else [part]
    return steps
