"""Grammars of the user as llguidance's dialect of Lark: GBNF converted, policy put into embedded JSON schemas.

Nothing of the user's grammar may loosen what the runtime guarantees: a schema inside ``%json`` gets the
runtime's options, options of the whole grammar are refused, and so is what llguidance reads and never enforces.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping

from ramet.runtime.grammar.engines.endless_rules import check_ends
from ramet.runtime.grammar.engines.gbnf_faults import gbnf_fault
from ramet.runtime.grammar.engines.spellings import Spellings
from ramet.runtime.grammar.schema import SchemaPlan, check_ebnf, plan
from ramet.runtime.grammar.schema.limits import place
from ramet.runtime.protocol import Ebnf, InvalidRequestError, UnsupportedConstraintError

HEADER = '%llguidance {"no_forcing": true}\n'
"""Of each grammar. Without it a mask leaves only llguidance's own spelling of a text that must come: it is no
more the set of tokens that the grammar allows, and depends on a tokenizer's code, not on its vocabulary
alone."""
ESCAPES_OF_OPEN_OBJECTS: Mapping[str, object] = {
    "json_allowed_escapes": 'nrbtf\\"',
    "json_allow_general_unicode_escapes": False,
}
"""For llguidance "\\u0061" is not the name "a", so what holds for the property "a" would not hold for it: where
other names than those of properties are allowed, no character is escaped by its number."""
MAX_LITERAL_CHARS = 150_000
"""Of one text that has to be written as it is. llguidance's fuel for one step ends behind some 200,000 forced
bytes, in the middle of an answer."""
MAX_GBNF_RULES = 500
MAX_GBNF_CHARS = 1 << 16
"""The conversion takes time that grows with the square of both."""

_GBNF_RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)
_PIECES = re.compile(
    r"""(?P<comment>//[^\n]*|\#[^\n]*)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<regex>/(?![/*])(?:[^/\\\n]|\\.)+/)
    |(?P<directive>%[a-z_]+)
    |(?P<attribute>\[[^\]\n]*\])
    |(?P<token><[^<>\s]*>)
    |(?P<other>[^/"%\[<\#]+|.)""",
    re.VERBOSE | re.DOTALL,
)
_GBNF_PIECES = re.compile(
    r"""(?P<comment>\#[^\n]*)
    |(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<set>\[(?:[^\]\\]|\\.)*\])
    |(?P<dot>\.)
    |(?P<other>[^\#"\[.]+|.)""",
    re.VERBOSE | re.DOTALL,
)
_GBNF_GROUPS = re.compile(
    r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|\{[^{}]*\}|[*?+()]|\s+|[^\s"\[{*?+()]+|.', re.DOTALL
)
_GBNF_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_ANY_CHARACTER = "[\\x00-\U0010ffff]"
_UNENFORCED_ATTRIBUTE = re.compile(r"\b(temperature|max_tokens|capture|stop_capture)\b")


def syntax_of(spec: Ebnf) -> str:
    """``gbnf`` or ``lark``."""
    if spec.syntax != "auto":
        return spec.syntax
    return "gbnf" if _GBNF_RULE.search(spec.grammar) else "lark"


def num_gbnf_rules(grammar: str) -> int:
    """How many rules a grammar in GBNF defines."""
    return len(_GBNF_RULE.findall(grammar))


def lark_of_ebnf(spec: Ebnf, spellings: Spellings, policy: Mapping[str, object]) -> str:
    """The grammar as Lark. ``policy``: llguidance's options for JSON schemas in it.

    Raises:
        InvalidRequestError: it is too large, or malformed, or has a rule that no finite text matches.
        UnsupportedConstraintError: something in it cannot be enforced.
    """
    check_ebnf(spec.grammar)
    check_ends(spec.grammar, syntax_of(spec))
    if syntax_of(spec) == "gbnf":
        return HEADER + _lark_of_gbnf(spec.grammar)
    return HEADER + "".join(_guarded(spec.grammar, spellings, policy))


def lark_regex(pattern: str) -> str:
    """A pattern as Lark's terminal."""
    written, escaped = [], False
    for character in pattern:
        # A slash would end the terminal.
        written.append("\\/" if character == "/" and not escaped else character)
        escaped = character == "\\" and not escaped
    text = "".join(written).replace("\n", "\\n").replace("\r", "\\r")
    return f"/{text}/" if text else '""'


def lark_json(planned: SchemaPlan, policy: Mapping[str, object], *, strict: bool = True) -> str:
    """A schema that llguidance enforces whole as Lark, with its options where it looks for a schema's own.
    Not ``strict``: the plan may leave out a part of it, which is validated afterwards.

    Raises UnsupportedConstraintError: it cannot be enforced, or holds a text that is too long.
    """
    planned.choose("llguidance", strict=strict)
    schema = schema_object(planned)
    check_literals(_texts(schema))
    escapes = ESCAPES_OF_OPEN_OBJECTS if _names_some_of_open_objects(schema) else {}
    schema = {**schema, "x-guidance": {**policy, **escapes}}
    return f"%json {json.dumps(schema, ensure_ascii=False)}"


def check_literals(texts: Iterable[str]) -> None:
    """Raises UnsupportedConstraintError: one of them is too long for llguidance."""
    longest = max(map(len, texts), default=0)
    if longest > MAX_LITERAL_CHARS:
        raise UnsupportedConstraintError(
            f"a text of {longest} characters in the constraint is too long for llguidance; the limit is "
            f"{MAX_LITERAL_CHARS}: shorten it",
            field="grammar",
        )


def _texts(schema: dict[str, object]) -> Iterator[str]:
    """Every string in it, names of properties too."""
    pending: list[object] = [schema]
    while pending:
        match pending.pop():
            case str() as text:
                yield text
            case dict() as part:
                yield from part
                pending += part.values()
            case list() as parts:
                pending += parts


def _names_some_of_open_objects(schema: dict[str, object]) -> bool:
    """Whether an object has properties by name or pattern, and others beside them."""
    pending: list[object] = [schema]
    while pending:
        match pending.pop():
            case dict() as part:
                is_named = bool(part.get("properties") or part.get("patternProperties"))
                if is_named and part.get("additionalProperties", True) is not False:
                    return True
                pending += part.values()
            case list() as parts:
                pending += parts
    return False


def embedded_schemas(grammar: str) -> Iterator[str]:
    """The schemas that follow %json. Raises InvalidRequestError: what follows is none."""
    at = 0
    while at < len(grammar):
        piece = _PIECES.match(grammar, at)
        assert piece is not None
        at = piece.end()
        if piece.lastgroup == "directive" and piece.group() == "%json":
            schema, at = _document(grammar, at, "%json")
            yield schema


def schema_object(planned: SchemaPlan) -> dict[str, object]:
    """The planned schema as an object. Raises UnsupportedConstraintError: it accepts nothing."""
    schema = json.loads(planned.text)
    if schema is False:
        raise UnsupportedConstraintError("the schema is false, which no value meets", field="grammar")
    return {} if schema is True else dict(schema)


def _guarded(grammar: str, spellings: Spellings, policy: Mapping[str, object]) -> Iterator[str]:
    at = 0
    while at < len(grammar):
        piece = _PIECES.match(grammar, at)
        assert piece is not None
        text, kind = piece.group(), piece.lastgroup
        at = piece.end()
        match kind:
            case "directive" if text == "%json":
                schema, at = _document(grammar, at, text)
                yield lark_json(plan(schema), policy)
            case "directive" if text == "%llguidance":
                options, at = _document(grammar, at, text)
                if options != "{}":
                    raise _refused(
                        f"the options %llguidance {options[:80]} are not the caller's", "remove them"
                    )
                yield ""
            case "token":
                yield _control_token(text, spellings)
            case "attribute" if (found := _UNENFORCED_ATTRIBUTE.search(text)) is not None:
                raise _refused(f"the attribute {found.group()} is not enforced", "remove it")
            case "comment" if text.startswith("#"):
                yield "//" + text[1:]
            case _:
                yield text


def _document(grammar: str, at: int, directive: str) -> tuple[str, int]:
    """The JSON document that begins at ``at``, and where it ends."""
    start = len(grammar) - len(grammar[at:].lstrip())
    try:
        value, end = json.JSONDecoder().raw_decode(grammar, start)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"what follows {directive} is not JSON: {error}", field="grammar") from None
    if not isinstance(value, dict | bool):
        raise InvalidRequestError(f"what follows {directive} must be a JSON object", field="grammar")
    return ("{}" if value == {} else grammar[start:end]), end


def _control_token(text: str, spellings: Spellings) -> str:
    """A control token by its text or as ``<[id]>``. Raises where it ends the output, or there is none."""
    found = re.fullmatch(r"<\[(\d{1,9})\]>", text)
    if found is None and text.startswith("<["):
        raise _refused(f"the set of tokens {text[:80]} is not supported", "name each token by <[id]>")
    token_id = spellings.control_token(text if found is None else int(found.group(1)))
    return f"<[{token_id}]>"


def _lark_of_gbnf(grammar: str) -> str:
    try:
        from llguidance.gbnf_to_lark import gbnf_to_lark
    except ImportError as error:
        raise InvalidRequestError(
            "grammars need llguidance: pip install 'llguidance>=1.9,<2'", field="grammar"
        ) from error
    if (num_rules := num_gbnf_rules(grammar)) > MAX_GBNF_RULES or len(grammar) > MAX_GBNF_CHARS:
        raise _refused(
            f"it has {num_rules} rules in {len(grammar)} characters; llguidance is given GBNF of up to "
            f"{MAX_GBNF_RULES} rules in {MAX_GBNF_CHARS} characters",
            "write the grammar as Lark",
        )
    try:
        plain = "".join(_plain_gbnf(grammar))
        return gbnf_to_lark("".join(_kept_groups(plain))).removeprefix("%llguidance {}")
    except RecursionError:
        raise _refused("its groups are nested too deep", "name inner groups as rules") from None
    except Exception as error:  # the converter raises Exception itself for rules that are missing or collide
        raise InvalidRequestError(_not_read(grammar, error), field="grammar") from None


def _not_read(grammar: str, error: Exception) -> str:
    fault = gbnf_fault(grammar)
    if fault is not None:
        return (
            f"the GBNF grammar is not valid at {place(grammar, fault.offset)}: {fault.problem}; {fault.remedy}"
        )
    said = " ".join(str(error).split())[:300]
    return f"the GBNF grammar is not valid: {said}; correct it there, or give the grammar as Lark"


def gbnf_without_dots(grammar: str) -> str:
    """GBNF with ``.`` as the set of all characters, for readers that do not know it."""
    return _GBNF_PIECES.sub(
        lambda piece: "[\\x00-\\U0010ffff]" if piece.lastgroup == "dot" else piece.group(), grammar
    )


def _plain_gbnf(grammar: str) -> Iterator[str]:
    """The grammar with escapes that the converter gets right, and ``.`` as the set of all characters."""
    for piece in _GBNF_PIECES.finditer(grammar):
        text = piece.group()
        match piece.lastgroup:
            case "dot":
                yield _ANY_CHARACTER
            case "string":
                yield _GBNF_ESCAPE.sub(_plain_escape, text)
            case "set":
                yield _GBNF_ESCAPE.sub(_plain_escape, text).replace("&", "\\x26").replace("~", "\\x7e")
            case "comment":
                yield ""
            case _:
                yield text


def _kept_groups(grammar: str) -> list[str]:
    """The pieces of plain GBNF. A group of one repeated thing that is repeated itself, as in ``("x"?){3}``,
    gets an empty text before it: the converter would leave its brackets out."""
    written: list[str] = []
    groups: list[int] = []
    closed, last = -1, ""
    for piece in _GBNF_GROUPS.finditer(grammar):
        text = piece.group()
        written.append(text)
        if text.isspace():
            continue
        is_count = text in "*?+" or text[0] == "{"
        if is_count and closed >= 0:
            written[closed] = '("" '
        closed = -1
        if text == "(":
            groups.append(len(written) - 1)
        elif text == ")" and groups:
            opened = groups.pop()
            closed = opened if last in ("*", "?", "+") or last.startswith("{") else -1
        last = text
    return written


def _plain_escape(escape: "re.Match[str]") -> str:
    code = next((digits for digits in escape.groups()[:3] if digits), None)
    if code is None:
        return f"\\x{ord(escape.group(4)):02x}" if escape.group(4) in '"\\[]-^' else escape.group()
    number = int(code, 16)
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        raise InvalidRequestError(f"{escape.group()} in the grammar is no character", field="grammar")
    return chr(number) if number >= 0x80 else f"\\x{number:02x}"


def _refused(problem: str, remedy: str) -> UnsupportedConstraintError:
    return UnsupportedConstraintError(f"the grammar cannot be enforced: {problem}; {remedy}", field="grammar")
