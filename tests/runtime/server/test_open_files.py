"""The limit of open files is raised, and connections get what is left of it."""

import subprocess
import sys

import pytest

from ramet.runtime.server.open_files import FEWEST, MAX_FILES, OWN_FILES, connection_limit, connections_of


def test_some_files_are_the_servers_own() -> None:
    assert connections_of(1024) == 1024 - OWN_FILES
    assert connections_of(64) == FEWEST


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such limit")
@pytest.mark.parametrize(("soft", "hard"), [(256, 512), (512, 512), (256, 256)])
def test_the_limit_is_raised_as_far_as_it_may(soft: int, hard: int) -> None:
    code = (
        "import resource\n"
        "from ramet.runtime.server.open_files import connection_limit\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "print(connection_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == [str(hard - OWN_FILES), str(hard), str(hard)]


def test_there_is_always_room_for_some() -> None:
    assert FEWEST <= connection_limit() <= MAX_FILES
