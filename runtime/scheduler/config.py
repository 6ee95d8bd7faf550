"""SchedulerConfig: the sizes that scheduling depends on."""

from dataclasses import dataclass, fields

from ramet.runtime.protocol import InvalidRequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Frozen, validated on construction.

    Raises:
        InvalidRequestError: a size is out of range; the message names it, its value and the range.
    """

    num_pages: int
    """Pages of the KV pool."""
    page_size: int
    """Tokens of a page."""
    context_length: int
    """Most tokens of prompt and output together."""
    vocab_size: int
    """Width of the model's logits; token ids are below it."""
    max_running_requests: int = 128
    """Requests that hold a slot at the same time; the others wait."""
    max_tokens_per_step: int = 512
    """The one budget of a step: decode rows, drafts and prefill chunks together."""
    enable_prefix_cache: bool = True
    """False: no request reads what another one computed, and nothing is kept of a finished one."""
    max_guessing_tokens: int = 64
    """A step that decodes only is filled up to so many tokens with drafts that are guesses; 0: nothing is
    guessed. What a grammar forces is no guess, and is bounded by max_tokens_per_step alone."""
    max_overtakes: int = 64
    """How often a waiting request may be overtaken by younger ones of its priority; 0: never."""
    admission_headroom: int = 32
    """Tokens of room that each running request must still have when another one is admitted, so that an
    admission is not followed at once by a preemption."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "enable_prefix_cache":
                continue
            low = 0 if field.name in ("max_overtakes", "admission_headroom", "max_guessing_tokens") else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise InvalidRequestError(
                    f"{field.name} is {value!r}; it must be an integer of at least {low}", field=field.name
                )

    @property
    def num_slots(self) -> int:
        """Tokens that the KV pool holds."""
        return self.num_pages * self.page_size
