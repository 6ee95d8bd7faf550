"""The tokenizer of a Hugging Face model folder."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken, Tokenizer

from ramet.runtime.protocol import ModelLoadError
from ramet.runtime.tokenizer.spec import TokenizerSpec, end_of_turn_ids
from ramet.runtime.tokenizer.spelling import WORD_BOUNDARY, Spelling

_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_NAME_LISTS = ("additional_special_tokens", "extra_special_tokens")


def spec_from_folder(path: str | Path) -> TokenizerSpec:
    """The tokenizer in a folder with ``tokenizer.json``.

    Where they exist, these add to it: tokenizer_config.json, special_tokens_map.json (special tokens, BOS),
    generation_config.json and config.json (end tokens), chat_template.jinja, additional_chat_templates/*.jinja,
    chat_template.json (templates).

    Raises:
        ModelLoadError: a file is missing or malformed, or describes a tokenizer that is not implemented.
    """
    folder = Path(path)
    text = _tokenizer_json(folder)
    config = _read_json(folder / "tokenizer_config.json")
    try:
        library = Tokenizer.from_str(text)
    except Exception as error:  # the library has no exception class of its own
        raise ModelLoadError(f"{folder / 'tokenizer.json'} cannot be read: {error}") from error
    library.no_truncation()
    library.no_padding()
    spelling = _spelling(_decoder(text), folder)
    _add_declared_tokens(library, config, folder)
    names, others = _named_tokens({**_read_json(folder / "special_tokens_map.json"), **config})
    _mark_special(library, [*names.values(), *others])
    vocabulary = library.get_vocab(with_added_tokens=True)
    special = {
        token.content: i for i, token in sorted(library.get_added_tokens_decoder().items()) if token.special
    }
    ids = {name: vocabulary[token] for name, token in names.items() if token in vocabulary}
    num_tokens = max(vocabulary.values(), default=-1) + 1
    default_template, named_templates = _chat_templates(folder, config)
    return TokenizerSpec(
        tokenizer_json=library.to_str(),
        num_tokens=num_tokens,
        vocab_size=num_tokens,
        spelling=spelling,
        chat_template=default_template,
        named_chat_templates=named_templates,
        bos_id=ids.get("bos_token"),
        eos_id=ids.get("eos_token"),
        unk_id=ids.get("unk_token"),
        pad_id=ids.get("pad_token"),
        eos_token_ids=end_of_turn_ids(special, _declared_ends(folder, ids.get("eos_token"), num_tokens)),
        special_token_ids=tuple(sorted(special.values())),
        add_bos=_adds_bos(library, config, ids.get("bos_token")),
        special_token_names=names,
    )


def _tokenizer_json(folder: Path) -> str:
    path = folder / "tokenizer.json"
    if not folder.is_dir():
        raise ModelLoadError(
            f"{folder} is not a folder; give a folder with config.json, tokenizer.json and weights"
        )
    if not path.is_file():
        hint = ""
        if (folder / "tokenizer.model").is_file() or (folder / "vocab.json").is_file():
            hint = "; transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder) writes it"
        raise ModelLoadError(
            f"{folder} has no tokenizer.json. A tokenizer needs tokenizer.json and, where the model has them, "
            f"tokenizer_config.json, generation_config.json and chat_template.jinja{hint}"
        )
    return _read_text(path)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file; {} where there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = msgspec.json.decode(_read_text(path))
    except msgspec.DecodeError as error:
        raise ModelLoadError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ModelLoadError(f"{path} must hold a JSON object")
    return content


class _Decoder(msgspec.Struct):
    decoder: dict[str, Any] | None = None


def _decoder(tokenizer_json: str) -> dict[str, Any]:
    return msgspec.json.decode(tokenizer_json, type=_Decoder).decoder or {"type": None}


def _spelling(decoder: Mapping[str, Any], folder: Path) -> Spelling:
    """How token texts become bytes, by the library's decoder."""
    steps = decoder.get("decoders", []) if decoder["type"] == "Sequence" else [decoder]
    kinds = {step["type"] for step in steps}
    if kinds == {"ByteLevel"}:
        return Spelling("byte_level")
    boundary = leading_space = False
    for step in steps:
        match step:
            case {"type": "Metaspace", "replacement": replacement} if replacement == WORD_BOUNDARY:
                boundary = True
                leading_space = (
                    step.get("prepend_scheme", "always" if step.get("add_prefix_space") else "never") != "never"
                )
            case {"type": "Replace", "pattern": {"String": pattern}, "content": " "} if (
                pattern == WORD_BOUNDARY
            ):
                boundary = True
            case {"type": "Strip", "content": " ", "start": 1, "stop": 0}:
                leading_space = True
            case {"type": "ByteFallback" | "Fuse"}:
                pass
            case _:
                raise ModelLoadError(_unknown_decoder(folder, step["type"]))
    if not boundary:
        raise ModelLoadError(_unknown_decoder(folder, decoder["type"]))
    return Spelling("sentencepiece", byte_fallback="ByteFallback" in kinds, leading_space=leading_space)


def _unknown_decoder(folder: Path, kind: str | None) -> str:
    return (
        f"{folder / 'tokenizer.json'} has a decoder of type {kind}, which is not implemented; implemented are "
        "ByteLevel and SentencePiece's (Metaspace, or Replace, ByteFallback, Fuse and Strip)"
    )


def _add_declared_tokens(library: Tokenizer, config: Mapping[str, Any], folder: Path) -> None:
    """Tokens that tokenizer_config.json has beyond tokenizer.json; their ids must be the next free ones."""
    declared = config.get("added_tokens_decoder") or {}
    for key, entry in sorted(declared.items(), key=lambda item: item[0].rjust(10)):
        if not key.isdecimal() or not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            raise ModelLoadError(
                f"{folder / 'tokenizer_config.json'} has a malformed entry {key!r} in added_tokens_decoder"
            )
        text = entry["content"]
        if library.token_to_id(text) is None:
            library.add_tokens([_added_token(entry)])
            if library.token_to_id(text) != int(key):
                raise ModelLoadError(
                    f"{folder / 'tokenizer_config.json'} gives {text!r} the id {key}, which tokenizer.json "
                    f"does not leave free (the next is {library.token_to_id(text)})"
                )
        elif entry.get("special"):
            _mark_special(library, [text])


def _added_token(entry: Mapping[str, Any]) -> AddedToken:
    return AddedToken(
        entry["content"],
        single_word=entry.get("single_word", False),
        lstrip=entry.get("lstrip", False),
        rstrip=entry.get("rstrip", False),
        normalized=entry.get("normalized", False),
        special=entry.get("special", False),
    )


def _named_tokens(config: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Special tokens by name, and those in lists. An entry is the text or an object with it as ``content``."""
    named = {name: text for name in _NAMES for text in _texts(config.get(name))}
    listed = [text for name in _NAME_LISTS for text in _texts(config.get(name))]
    return named, listed


def _texts(entry: object) -> Iterator[str]:
    match entry:
        case str():
            yield entry
        case {"content": str(text)}:
            yield text
        case list():
            for item in entry:
                yield from _texts(item)
        case dict():
            yield from _texts(list(entry.values()))


def _mark_special(library: Tokenizer, texts: list[str]) -> None:
    """Tokens that the vocabulary has become special, and keep their rules for the space around them."""
    added = {token.content: token for token in library.get_added_tokens_decoder().values()}
    marked = []
    for text in texts:
        if library.token_to_id(text) is None or (text in added and added[text].special):
            continue
        old = added.get(text)
        marked.append(
            AddedToken(
                text,
                single_word=old.single_word if old else False,
                lstrip=old.lstrip if old else False,
                rstrip=old.rstrip if old else False,
                normalized=False,
                special=True,
            )
        )
    library.add_special_tokens(marked)


def _declared_ends(folder: Path, eos_id: int | None, num_tokens: int) -> list[int]:
    model = _read_json(folder / "config.json")
    text_model = model.get("text_config")
    sources = [
        _read_json(folder / "generation_config.json"),
        model,
        text_model if isinstance(text_model, dict) else {},
    ]
    declared: list[object] = [eos_id]
    for source in sources:
        value = source.get("eos_token_id")
        declared += value if isinstance(value, list) else [value]
    return [i for i in declared if isinstance(i, int) and 0 <= i < num_tokens]


def _adds_bos(library: Tokenizer, config: Mapping[str, Any], bos_id: int | None) -> bool:
    if bos_id is None:
        return False
    declared = config.get("add_bos_token")
    if isinstance(declared, bool):
        return declared
    return library.encode("a", add_special_tokens=True).ids[:1] == [bos_id]


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> tuple[str | None, dict[str, str]]:
    """The default template and the named ones; files of their own win over tokenizer_config.json."""
    templates: dict[str, str] = {}
    for source in (config.get("chat_template"), _read_json(folder / "chat_template.json").get("chat_template")):
        match source:
            case str():
                templates["default"] = source
            case [*entries]:
                for entry in entries:
                    match entry:
                        case {"name": str(name), "template": str(template)}:
                            templates[name] = template
                        case _:
                            raise ModelLoadError(
                                f"{folder}: chat_template has an entry without name or template"
                            )
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = _read_text(path)
    if (folder / "chat_template.jinja").is_file():
        templates["default"] = _read_text(folder / "chat_template.jinja")
    return templates.pop("default", None), templates
