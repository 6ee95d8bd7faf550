"""String formats as regular expressions, from the RFCs that JSON Schema names.

Stricter than an RFC only where a check of the finished value would be: no year 0000, no leap second, no host
label with hyphens in third and fourth place, and of regular expressions those that ECMA-262 and Python both
read, with groups at most two deep and without lookaround.
"""

from functools import lru_cache

from ramet.runtime.grammar.schema.limits import SchemaLimits
from ramet.runtime.grammar.schema.regex_parser import Regex
from ramet.runtime.grammar.schema.regex_syntax import parse_whole

REFUSED = frozenset({"idn-hostname", "idn-email"})
"""Formats that JSON Schema defines and no regular expression describes well enough."""

NARROWED = {"regex": "what ECMA-262 and Python share, with groups at most two deep and no lookaround"}
"""Formats of which only some values are accepted, and which."""

_YEAR = "(?:[1-9]\\d{3}|0[1-9]\\d{2}|00[1-9]\\d|000[1-9])"
_LEAP = "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)"
    f"|02-(?:0[1-9]|1\\d|2[0-8]))|{_LEAP}-02-29)"
)
_TIME = "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d+)?(?:[Zz]|[+\\-](?:[01]\\d|2[0-3]):[0-5]\\d)"

_SAFE_LABEL = (
    "[A-Za-z0-9](?:[A-Za-z0-9]|[A-Za-z0-9\\-](?:[A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9\\-]{0,59}[A-Za-z0-9]"
    "|-(?:[A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9\\-]{0,58}[A-Za-z0-9])))?"
)
_HOSTNAME = f"{_SAFE_LABEL}(?:\\.{_SAFE_LABEL})*"

_OCTET = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
_IPV4 = f"{_OCTET}(?:\\.{_OCTET}){{3}}"
_GROUP = "[0-9A-Fa-f]{1,4}"


def _ipv6() -> str:
    """RFC 3986's IPv6address: up to seven groups around ``::``, the last two of them perhaps as IPv4."""
    tail = f"(?:{_GROUP}:{_GROUP}|{_IPV4})"
    forms = [f"(?:{_GROUP}:){{6}}{tail}"]
    for before in range(8):
        left = f"(?:(?:{_GROUP}:){{0,{before - 1}}}{_GROUP})?" if before else ""
        after = 7 - before
        if after >= 3:
            forms.append(f"{left}::(?:{_GROUP}:){{{after - 2}}}{tail}")
        elif after == 2:
            forms.append(f"{left}::{tail}")
        elif after == 1:
            forms.append(f"{left}::{_GROUP}")
        else:
            forms.append(f"{left}::")
    return f"(?:{'|'.join(forms)})"


_IPV6 = _ipv6()
_IP_LITERAL = f"\\[(?:{_IPV6})\\]"
_UCS = "\\u{a0}-\\u{d7ff}\\u{f900}-\\u{fdcf}\\u{fdf0}-\\u{ffef}" + "".join(
    f"\\u{{{plane:x}0000}}-\\u{{{plane:x}fffd}}" for plane in (1, 2)
)
_PRIVATE = "\\u{e000}-\\u{f8ff}\\u{f0000}-\\u{ffffd}\\u{100000}-\\u{10fffd}"


def _uri(ucs: str, private: str) -> tuple[str, str]:
    """RFC 3986 and, with the wider characters, RFC 3987: (URI, URI-reference)."""
    coded = "%[0-9A-Fa-f]{2}"
    plain = f"A-Za-z0-9\\-._~!$&'()*+,;={ucs}"
    segment_char = f"(?:[{plain}:@]|{coded})"
    authority = f"(?:(?:[{plain}:]|{coded})*@)?(?:{_IP_LITERAL}|(?:[{plain}]|{coded})*)(?::\\d*)?"
    path = f"(?:/{segment_char}*)*"
    hierarchy = f"//{authority}{path}|/(?:{segment_char}+{path})?"
    ending = f"(?:\\?(?:[{plain}:@/?{private}]|{coded})*)?(?:#(?:[{plain}:@/?]|{coded})*)?"
    scheme = "[A-Za-z][A-Za-z0-9+\\-.]*"
    rootless = f"{segment_char}+{path}"
    no_scheme = f"(?:[{plain}@]|{coded})+{path}"
    full = f"{scheme}:(?:{hierarchy}|{rootless}|){ending}"
    return full, f"(?:{full}|(?:{hierarchy}|{no_scheme}|){ending})"


_URI, _URI_REFERENCE = _uri("", "")
_IRI, _IRI_REFERENCE = _uri(_UCS, _PRIVATE)

_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~\\-]+"
_QUOTED = '"(?:[ !#-\\[\\]-~]|\\\\[ -~])*"'
_EMAIL = f"(?:{_ATOM}(?:\\.{_ATOM})*|{_QUOTED})@(?:{_HOSTNAME}|\\[(?:{_IPV4}|IPv6:{_IPV6})\\])"

_POINTER = "(?:/(?:[^~/]|~[01])*)*"
_VARIABLE = "[A-Za-z0-9_](?:\\.?[A-Za-z0-9_])*(?:\\*|:[1-9]\\d{0,3})?"
_TEMPLATE_TEXT = f"[!#$&(-;=?-\\[\\]_a-z~{_UCS}{_PRIVATE}]"
_TEMPLATE = f"(?:{_TEMPLATE_TEXT}|%[0-9A-Fa-f]{{2}}|\\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\\}})*"


def _regex(depth: int) -> str:
    """Regular expressions that ECMA-262 and Python both read, with groups ``depth`` deep."""
    escape = "\\\\(?:[dDwWsSnrtfv]|[\\^$.|?*+()\\[\\]{}/\\\\\\-])"
    member = f"(?:[^\\[\\]\\\\^&~|\\-\\x00-\\x1f]|{escape})"
    chosen = f"\\[\\^?(?:a-z|A-Z|0-9|{member})+\\-?\\]"
    group = f"|\\((?:\\?:)?{_regex(depth - 1)}\\)" if depth else ""
    atom = f"(?:[^\\^$.|?*+()\\[\\]{{}}\\\\\\x00-\\x1f]|\\.|{escape}|{chosen}{group})"
    piece = f"(?:{atom}(?:[*+?]\\??|\\{{\\d{{1,2}},?\\}})?|[\\^$])"
    return f"{piece}*(?:\\|{piece}*)*"


_PATTERNS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[Tt]{_TIME}",
    "duration": (
        "P(?:\\d+W|(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)"
        "(?:T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S))?"
        "|T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S))"
    ),
    "email": _EMAIL,
    "hostname": _HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "uri-reference": _URI_REFERENCE,
    "iri": _IRI,
    "iri-reference": _IRI_REFERENCE,
    "uri-template": _TEMPLATE,
    "uuid": "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "regex": _regex(2),
    "json-pointer": _POINTER,
    "relative-json-pointer": f"(?:0|[1-9]\\d*)(?:#|{_POINTER})",
}
KNOWN = frozenset(_PATTERNS)
MAX_LENGTHS = {"hostname": 253}


_LIMITS = SchemaLimits(max_pattern_length=20_000)


@lru_cache(maxsize=len(_PATTERNS))
def format_regex(name: str) -> Regex:
    """What the whole string must match. ``name`` is in KNOWN."""
    return parse_whole(_PATTERNS[name], _LIMITS)
