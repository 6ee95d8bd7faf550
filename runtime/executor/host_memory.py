"""The C library's allocator, told to keep what a step frees for the next one."""

import ctypes

# mallopt's parameters, from glibc's malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_ARENA_MAX = -8


def keep_freed_memory() -> bool:
    """Make this process reuse freed memory instead of returning it to the system and asking for it again.

    The system hands out memory page by page, zeroed, on first touch; a step's temporaries of a few MiB then
    cost more than the arithmetic on them: softmax and its like over 32 rows of 49,152 logits took 28 ms, and
    1.9 ms with memory that is kept. Memory freed stays with the process, up to its peak; call it once
    everything big and short-lived is gone. One arena for all threads, because what others free would not be
    found again.

    Returns False where the C library is not glibc, and changes nothing there.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    # Older versions take 32 MiB at most for the second.
    accepted = library.mallopt(_MMAP_THRESHOLD, 1 << 30) or library.mallopt(_MMAP_THRESHOLD, 32 << 20)
    return bool(accepted and library.mallopt(_TRIM_THRESHOLD, 2**31 - 1) and library.mallopt(_ARENA_MAX, 1))
