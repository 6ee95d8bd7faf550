"""The kinds of servers that speak OpenAI's API, and what each of them honours beyond it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ramet.runtime.protocol import InvalidRequestError

COMMON_FIELDS: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "logit_bias": "logit_bias",
    "seed": "seed",
    "n": "n",
    "stop": "stop",
}
"""SamplingParams field -> what OpenAI's API calls it; ``max_tokens`` and ``logprobs`` differ by route."""
FULLY_SPECIFIED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Fields for which vLLM and SGLang take the defaults of the model's generation_config.json: they are always
sent, so that an answer is sampled as the program says, whatever that file says."""
MANY = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """One kind of server.

    further_fields: SamplingParams field -> the server's own name for it, besides COMMON_FIELDS.
    grammars: kinds of GrammarSpec that it enforces; how each is said is in ``openai_constraints``.
    """

    name: str
    further_fields: Mapping[str, str] = field(default_factory=dict)
    grammars: frozenset[str] = frozenset()
    max_tokens: str = "max_tokens"
    """In chat."""
    max_stops: int = MANY
    """Where there are more, they are looked for in the answer as it comes."""
    max_top_logprobs: int = MANY
    """In chat."""
    max_completion_logprobs: int = MANY
    is_fully_specified: bool = False
    continuing: Mapping[str, object] | None = None
    """Fields with which an answer goes on where the last message stops; None: it cannot."""
    echoes_logprobs: bool = False
    """Text completions give the log probabilities of their prompt's tokens."""
    token_id_fields: Mapping[str, object] = field(default_factory=dict)
    """Fields with which it tells token ids besides texts."""
    logprob_id_fields: Mapping[str, object] = field(default_factory=dict)
    """Fields with which logprobs name their tokens by ids ("token_id:17")."""
    salt: str | None = None
    """Its name for cache_salt."""
    program: str | None = None
    """Its name for the ProgramTag."""
    priority_sign: int = 0
    """1: higher runs earlier, -1: lower does, 0: it has no priorities."""
    lora: str | None = None
    """Its name for the LoRA adapter; None: it has none."""
    takes_bare_tool_messages: bool = True
    """A tool's message may stand without the id of a call."""
    needs_key: bool = False

    @property
    def fields(self) -> Mapping[str, str]:
        return {**COMMON_FIELDS, **self.further_fields}

    @property
    def sampling_fields(self) -> frozenset[str]:
        """As Capabilities has them."""
        return frozenset(self.fields) | {"logprobs", "stop_regex"}

    @property
    def takes_stop_regexes(self) -> bool:
        """Otherwise they are looked for in the answer as it comes."""
        return "stop_regex" in self.fields


OPENAI = Flavour(
    name="openai",
    grammars=frozenset({"json_schema", "choice", "regex"}),
    max_tokens="max_completion_tokens",
    max_stops=4,
    max_top_logprobs=20,
    max_completion_logprobs=5,
    takes_bare_tool_messages=False,
    needs_key=True,
)
VLLM = Flavour(
    name="vllm",
    further_fields={
        "top_k": "top_k",
        "min_p": "min_p",
        "repetition_penalty": "repetition_penalty",
        "min_tokens": "min_tokens",
        "stop_token_ids": "stop_token_ids",
        "include_stop": "include_stop_str_in_output",
        "ignore_eos": "ignore_eos",
        "skip_special_tokens": "skip_special_tokens",
    },
    grammars=frozenset({"json_schema", "choice", "regex", "ebnf", "structural_tag"}),
    is_fully_specified=True,
    continuing={"continue_final_message": True, "add_generation_prompt": False},
    echoes_logprobs=True,
    token_id_fields={"return_token_ids": True},
    logprob_id_fields={"return_tokens_as_token_ids": True},
    salt="cache_salt",
    priority_sign=-1,
    # Adapters are models of their own there.
    lora="model",
)
SGLANG = Flavour(
    name="sglang",
    further_fields={
        "top_k": "top_k",
        "min_p": "min_p",
        "repetition_penalty": "repetition_penalty",
        "min_tokens": "min_tokens",
        "stop_token_ids": "stop_token_ids",
        "stop_regex": "stop_regex",
        "include_stop": "no_stop_trim",
        "ignore_eos": "ignore_eos",
        "skip_special_tokens": "skip_special_tokens",
    },
    grammars=frozenset({"json_schema", "choice", "regex", "ebnf", "structural_tag"}),
    is_fully_specified=True,
    continuing={"continue_final_message": True},
    echoes_logprobs=True,
    token_id_fields={"return_token_ids": True},
    salt="extra_key",
    priority_sign=1,
    lora="lora_path",
)
RAMET = Flavour(
    name="ramet",
    further_fields={
        name: name
        for name in (
            "top_k",
            "min_p",
            "repetition_penalty",
            "min_tokens",
            "stop_token_ids",
            "stop_regex",
            "include_stop",
            "ignore_eos",
            "skip_special_tokens",
            "close_on_length",
        )
    },
    grammars=frozenset({"json_schema", "choice", "regex", "ebnf", "structural_tag"}),
    is_fully_specified=True,
    continuing={"continue_final_message": True, "add_generation_prompt": False},
    echoes_logprobs=True,
    salt="cache_salt",
    program="program",
    priority_sign=1,
)
FLAVOURS: Mapping[str, Flavour] = {flavour.name: flavour for flavour in (OPENAI, VLLM, SGLANG, RAMET)}


def flavour_of(name: str | None, base_url: str) -> Flavour:
    """The one of that name; None: OpenAI's own, which every other server has at least.

    Raises:
        InvalidRequestError: there is none of that name.
    """
    if name is None:
        own = is_openai(base_url)
        return OPENAI if own else _anonymous()
    if name not in FLAVOURS:
        raise InvalidRequestError(
            f"flavour is {name!r}; it must be one of {', '.join(FLAVOURS)}", field="flavour"
        )
    return FLAVOURS[name]


def is_openai(base_url: str) -> bool:
    return f".{urlsplit(base_url).hostname}".endswith(".openai.com")


def _anonymous() -> Flavour:
    """A server of unknown kind: what OpenAI's reference has, under the names that all servers know."""
    return Flavour(
        name="openai", grammars=frozenset({"json_schema", "choice", "regex"}), takes_bare_tool_messages=False
    )
