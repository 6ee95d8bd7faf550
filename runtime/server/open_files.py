"""How many connections there may be: the process may have so many files open, and needs some for itself."""

import sys

MAX_FILES = 1 << 16
"""More than that is not asked for, whatever the system would allow."""
OWN_FILES = 192
"""Left for the engine's sockets, the store, logs, and connections that are accepted and not counted yet."""
FEWEST = 16
ANYWHERE = 4096
"""Connections where the system does not tell its limit."""


def connection_limit() -> int:
    """Raises this process's limit of open files as far as it may; how many of them are for connections."""
    if sys.platform == "win32":
        return ANYWHERE
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            # Some systems allow less than they say.
            wanted = soft
    else:
        wanted = MAX_FILES if soft == resource.RLIM_INFINITY else min(soft, MAX_FILES)
    return connections_of(wanted)


def connections_of(num_files: int) -> int:
    return max(FEWEST, num_files - OWN_FILES)
