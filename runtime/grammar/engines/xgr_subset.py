"""What xgrammar enforces whole of patterns and structural tags, and how it is written for it."""

from collections.abc import Mapping

from ramet.runtime.grammar.engines.endless_rules import check_ends, nested_repeat
from ramet.runtime.grammar.engines.full_pattern import FullPattern, full_pattern, refuse
from ramet.runtime.grammar.engines.lark_text import (
    gbnf_without_dots,
    num_gbnf_rules,
    schema_object,
    syntax_of,
)
from ramet.runtime.grammar.engines.spellings import Spellings
from ramet.runtime.grammar.engines.structural import (
    AnyText,
    Const,
    Either,
    Format,
    Grammar,
    Json,
    Pattern,
    Repeat,
    SeparatedTags,
    Sequence,
    StructuralDocument,
    Tag,
    Token,
    TriggeredTags,
    told_of,
)
from ramet.runtime.grammar.schema import check_ebnf
from ramet.runtime.protocol import Ebnf, UnsupportedConstraintError

MAX_REPEATS = 1_000
"""Compile time grows with their number."""
MAX_GBNF_RULES = 4_000
"""20,000 take it ten seconds."""


def xgrammar_pattern(pattern: str) -> FullPattern:
    """Raises UnsupportedConstraintError: xgrammar reads it differently, or could hang on it."""
    full = full_pattern(pattern)
    if full.classes:
        raise refuse(
            pattern,
            f"xgrammar reads {', '.join(sorted(full.classes))} differently; write the characters out "
            "as in [0-9], "
            "or use llguidance",
        )
    if full.has_flags:
        raise refuse(pattern, "xgrammar has no flags; use llguidance")
    if full.is_nested:
        raise refuse(pattern, "a repeat inside of a repeat can hang xgrammar; use llguidance")
    if full.repeats > MAX_REPEATS:
        raise refuse(pattern, f"xgrammar takes {MAX_REPEATS:,} copies at most; use llguidance")
    return full


def xgrammar_of_structural_tag(
    document: StructuralDocument, spellings: Spellings, max_whitespace: int
) -> Mapping[str, object]:
    """The document for xgrammar.

    Raises:
        UnsupportedConstraintError: a region of it cannot be enforced.
    """
    if document.plans and not max_whitespace:
        raise UnsupportedConstraintError(
            "max_whitespace is 0, which xgrammar cannot keep inside of a structural tag; give at "
            "least 1, or use "
            "llguidance",
            field="grammar",
        )
    return {"type": "structural_tag", "format": _Writer(spellings, max_whitespace).format(document.root)}


class _Writer:
    def __init__(self, spellings: Spellings, max_whitespace: int) -> None:
        self._spellings = spellings
        self._max_whitespace = max_whitespace

    def format(self, root: Format) -> dict[str, object]:
        match root:
            case Const(value):
                return {"type": "const_string", "value": value}
            case Json(planned):
                with told_of(root.place):
                    planned.choose("xgrammar")
                return {
                    "type": "json_schema",
                    "json_schema": schema_object(planned),
                    "max_whitespace_cnt": self._max_whitespace,
                }
            case Pattern(regex):
                with told_of(root.place):
                    return {"type": "regex", "pattern": xgrammar_pattern(regex.pattern).text}
            case Grammar(ebnf):
                with told_of(root.place):
                    return {"type": "grammar", "grammar": gbnf_of(ebnf), "syntax": "ebnf"}
            case AnyText(excludes):
                return {"type": "any_text", "excludes": list(excludes)}
            case Token(token):
                return {"type": "token", "token": self._spellings.control_token(token)}
            case Sequence(elements) | Either(elements):
                kind = "sequence" if isinstance(root, Sequence) else "or"
                return {"type": kind, "elements": [self.format(element) for element in elements]}
            case Repeat(content, low, high):
                most = -1 if high is None else high
                return {"type": "repeat", "content": self.format(content), "min": low, "max": most}
            case Tag():
                return self._tag(root)
            case TriggeredTags() | SeparatedTags():
                return self._tags(root)

    def _tags(self, part: TriggeredTags | SeparatedTags) -> dict[str, object]:
        written: dict[str, object] = {
            "tags": [self._tag(tag) for tag in part.tags],
            "at_least_one": part.at_least_one,
            "stop_after_first": part.stop_after_first,
        }
        if isinstance(part, SeparatedTags):
            return {"type": "tags_with_separator", "separator": part.separator, **written}
        if part.at_least_one:
            raise UnsupportedConstraintError(
                "triggered_tags with at_least_one cannot be enforced by xgrammar, which allows no text before "
                "the first tag then; use llguidance",
                field="grammar",
            )
        triggers, excludes = list(part.triggers), list(part.excludes)
        return {"type": "triggered_tags", "triggers": triggers, "excludes": excludes, **written}

    def _tag(self, tag: Tag) -> dict[str, object]:
        ends = [end.value if isinstance(end, Const) else self.format(end) for end in tag.ends]
        if len(ends) > 1 and not all(isinstance(end, str) for end in ends):
            raise UnsupportedConstraintError(
                "the structural tag cannot be enforced by xgrammar: a tag has several ends, one of "
                "them a token; "
                "give one end",
                field="grammar",
            )
        return {
            "type": "tag",
            "begin": tag.begin.value if isinstance(tag.begin, Const) else self.format(tag.begin),
            "content": self.format(tag.content),
            "end": ends[0] if len(ends) == 1 else ends,
        }


def gbnf_of(ebnf: Ebnf) -> str:
    """A grammar's GBNF. Raises UnsupportedConstraintError: it is Lark, which xgrammar reads with other
    terminals."""
    check_ebnf(ebnf.grammar)
    if syntax_of(ebnf) != "gbnf":
        raise UnsupportedConstraintError(
            "a grammar in Lark cannot be enforced by xgrammar; write it as GBNF, or use llguidance",
            field="grammar",
        )
    if (count := num_gbnf_rules(ebnf.grammar)) > MAX_GBNF_RULES:
        raise UnsupportedConstraintError(
            f"a grammar of {count} rules in GBNF cannot be enforced by xgrammar, which is given at most "
            f"{MAX_GBNF_RULES}; write it as Lark",
            field="grammar",
        )
    check_ends(ebnf.grammar, "gbnf")
    if (rule := nested_repeat(ebnf.grammar)) is not None:
        raise UnsupportedConstraintError(
            f"the grammar cannot be enforced by xgrammar: in the rule {rule[:80]} a count repeats what is "
            "repeated or optional itself, on which xgrammar can hang; use llguidance",
            field="grammar",
        )
    return gbnf_without_dots(ebnf.grammar)
