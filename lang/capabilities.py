"""Refusing what a backend cannot do, by name and before anything is sent."""

from ramet.lang.backends.base import Capabilities
from ramet.lang.errors import ProgramStructureError, UnsupportedError
from ramet.lang.variables import Place
from ramet.runtime.protocol import SamplingParams

# What every backend does: they are not ways of sampling.
_ALWAYS = ("max_tokens", "grammar")
_DEFAULTS = SamplingParams()


def check_sampling(params: SamplingParams, capabilities: Capabilities, place: Place, name: str | None) -> None:
    """Raises UnsupportedError for the first parameter, or kind of constraint, that would not be honoured."""
    if params.grammar is not None:
        kind = str(type(params.grammar).__struct_config__.tag)
        if kind not in capabilities.grammars:
            raise place.error(
                UnsupportedError,
                f"{capabilities.name} cannot constrain an answer by {kind}; "
                f"{_instead(sorted(capabilities.grammars))}",
                name,
            )
    if capabilities.sampling_fields is None:
        return
    for field in SamplingParams.__struct_fields__:
        value = getattr(params, field)
        unusual = field not in _ALWAYS and value != getattr(_DEFAULTS, field)
        if unusual and field not in capabilities.sampling_fields:
            raise place.error(
                UnsupportedError, f"{capabilities.name} does not honour {field}={value!r}; leave it out", name
            )


def check_select(capabilities: Capabilities, place: Place, name: str | None) -> None:
    if not capabilities.select:
        remedy = (
            "use gen with a regex of the options"
            if "regex" in capabilities.grammars
            else "use a backend that scores options"
        )
        raise place.error(UnsupportedError, f"{capabilities.name} cannot select; {remedy}", name)


def check_tools(
    capabilities: Capabilities, place: Place, role: str | None, params: SamplingParams, name: str | None
) -> None:
    """For a gen with tools."""
    if not capabilities.tools:
        raise place.error(
            UnsupportedError,
            f"{capabilities.name} has no tools; call them in the program and say their results",
            name,
        )
    if role != "assistant":
        raise place.error(
            ProgramStructureError,
            "a gen with tools stands outside of the assistant role, and it is the assistant who calls; put it "
            "inside assistant(...)",
            name,
        )
    for field, value in (("n", params.n), ("grammar", params.grammar)):
        if value != getattr(_DEFAULTS, field):
            raise place.error(
                ProgramStructureError,
                f"the run gives {field}={value!r}, which a gen with tools cannot have; leave it out",
                name,
            )


def check_lora(capabilities: Capabilities, place: Place, lora: str, name: str | None) -> None:
    if not capabilities.lora:
        raise place.error(
            UnsupportedError,
            f"{capabilities.name} applies no LoRA adapter to single calls, and lora is {lora!r}; merge the "
            "adapter into the weights, or use a server that has loaded it (vllm and sglang can)",
            name,
        )


def check_image(capabilities: Capabilities, place: Place) -> None:
    if not capabilities.images:
        raise place.error(UnsupportedError, f"{capabilities.name} takes text only, no images")


def check_role(capabilities: Capabilities, place: Place, role: str) -> None:
    if not capabilities.roles:
        raise place.error(
            UnsupportedError,
            f"{capabilities.name} has no chat template, so it knows no {role} role; write the prompt as text, "
            "or use a model with a chat template",
        )


def check_outside_roles(capabilities: Capabilities, place: Place, what: str, name: str | None = None) -> None:
    """For text, images and calls that stand in no role."""
    if not capabilities.text_completion:
        raise place.error(
            UnsupportedError,
            f"{capabilities.name} speaks messages only, and {what} stands outside of any; put it inside "
            "system(...), user(...) or assistant(...)",
            name,
        )


def check_role_order(open_role: str | None, role: str, place: Place, *, begins: bool) -> None:
    """Roles neither nest nor end before they begin."""
    if begins and open_role is not None:
        raise place.error(
            ProgramStructureError,
            f"{role}_begin() inside the {open_role} role; end that first: roles do not nest",
        )
    if not begins and open_role != role:
        inside = "no role is open" if open_role is None else f"the open role is {open_role}"
        raise place.error(ProgramStructureError, f"{role}_end() where {inside}")


def _instead(kinds: list[str]) -> str:
    return f"it can by {', '.join(kinds)}" if kinds else "it enforces no constraints"
