"""What a scheduler counts, and how it reports it."""

from dataclasses import dataclass

from ramet.runtime.cache import CacheStats


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Sizes as they are now, and counts since the scheduler was made."""

    num_waiting: int
    num_compiling: int
    """Requests that wait for their grammar."""
    num_running: int
    num_free_pages: int
    num_steps: int
    num_computed_tokens: int
    """Tokens that steps computed: prompts, outputs, and rejected drafts too."""
    num_prompt_tokens: int
    """Of the requests that were admitted."""
    num_cached_tokens: int
    """Those of the prompt tokens that were found in the cache."""
    num_output_tokens: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    num_late_masks: int
    num_preemptions: int
    num_finished: int
    num_sessions: int
    """Those that pin a prefix."""
    num_pinned_tokens: int
    num_dropped_pins: int
    """Pins that gave way to requests, or to those of other sessions."""
    cache: CacheStats


@dataclass(slots=True)
class Counts:
    """The running totals behind SchedulerStats."""

    steps: int = 0
    computed: int = 0
    prompt: int = 0
    cached: int = 0
    outputs: int = 0
    drafts: int = 0
    accepted: int = 0
    late: int = 0
    preemptions: int = 0
    finished: int = 0
