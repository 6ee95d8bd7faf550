"""What planning a schema answers: which engines enforce it, what is refused, what is checked afterwards."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ramet.runtime.protocol import UnsupportedConstraintError

ENGINES = ("llguidance", "xgrammar", "outlines")
"""Names of the engines, the safest first."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """One constraint that cannot be enforced.

    ``pointer`` is the JSON pointer (RFC 6901) of the schema that holds ``keyword``; empty: the root.
    """

    pointer: str
    keyword: str
    why: str
    remedy: str

    @property
    def location(self) -> str:
        """The JSON pointer of the keyword itself, as a URI fragment such as ``#/properties/a/not``."""
        escaped = self.keyword.replace("~", "~0").replace("/", "~1")
        return f"#{self.pointer}/{escaped}" if self.keyword else f"#{self.pointer}"

    def __str__(self) -> str:
        return f"{self.location}: {self.why}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class SchemaPlan:
    """How a JSON schema is enforced.

    ``text`` is the schema to give to an engine: compact JSON, one object, in a plain dialect (types, enum,
    bounds, anchored pattern, properties, patternProperties, prefixItems/items, anyOf, allOf of patterns only,
    and ``#/$defs/`` references), its properties in the order in which they are to be generated. It is also the
    key under which a compiled grammar can be kept: schemas of equal meaning and property order often share it.

    ``unsupported`` empty: ``text`` accepts exactly the values that the given schema accepts. Otherwise it
    accepts those and more, and a finished value must be validated against ``source``.
    """

    source: str
    text: str
    unsupported: tuple[Unsupported, ...] = ()
    obstacles: Mapping[str, tuple[Unsupported, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """By engine: what of ``text`` it would not enforce, or would hang on."""
    notes: tuple[str, ...] = ()
    """What the reader should know: keywords that are annotations only, such as an unknown format."""

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines that enforce ``text`` whole, the safest first."""
        return tuple(name for name in ENGINES if not self.obstacles.get(name))

    @property
    def safest_engine(self) -> str | None:
        """The first of ``engines``; None: there is none. The obstacles of the others are not looked for."""
        return next((name for name in ENGINES if not self.obstacles.get(name)), None)

    @property
    def exact(self) -> bool:
        return not self.unsupported

    @property
    def must_validate(self) -> bool:
        """A finished value has to be validated: ``text`` is weaker than the schema."""
        return not self.exact

    def choose(self, engine: str | None = None, *, strict: bool = True) -> str:
        """The engine to compile ``text`` with: ``engine``, or the safest that can.

        ``strict=False`` accepts that ``text`` is weaker than the schema, never that the engine is weaker
        than ``text``.

        Raises:
            UnsupportedConstraintError: names the first constraint that would not be enforced, and the others.
        """
        if strict and self.unsupported:
            raise refusal(self.unsupported)
        if engine is not None and engine not in ENGINES:
            raise UnsupportedConstraintError(
                f"the grammar engine {engine!r} is unknown; known are {', '.join(ENGINES)}", field="backend"
            )
        if engine is not None and (missing := self.obstacles.get(engine)):
            raise refusal(missing, f"{engine} cannot enforce the schema at ")
        if engine is not None:
            return engine
        safest = self.safest_engine
        if safest is None:
            raise refusal(self.obstacles[ENGINES[0]], "no grammar engine can enforce the schema at ")
        return safest


def refusal(
    missing: tuple[Unsupported, ...], start: str = "the schema cannot be enforced at "
) -> UnsupportedConstraintError:
    """The error that names the first of ``missing`` and counts the others."""
    more = f" (and {len(missing) - 1} more: {_locations(missing[1:])})" if len(missing) > 1 else ""
    return UnsupportedConstraintError(f"{start}{missing[0]}{more}", field="grammar")


def _locations(missing: tuple[Unsupported, ...], shown: int = 5) -> str:
    names = [item.location for item in missing[:shown]]
    return ", ".join(names) + (", ..." if len(missing) > shown else "")
