"""What the machine tells is plausible, and what it does not tell is None."""

import time

from ramet.runtime.cli.machine import (
    describe_machine,
    resident_bytes,
    seconds_since_process_start,
    usable_cores,
)


def test_the_machine_is_described() -> None:
    machine = describe_machine()
    assert machine.cores == usable_cores() >= 1
    assert machine.cpu
    assert machine.platform
    if machine.memory_bytes is not None and machine.available_bytes is not None:
        assert 0 < machine.available_bytes <= machine.memory_bytes


def test_the_process_is_older_than_its_tests() -> None:
    age = seconds_since_process_start()
    assert age is None or 0 < age < time.clock_gettime(time.CLOCK_BOOTTIME)
    later = seconds_since_process_start()
    assert age is None or (later is not None and later >= age)


def test_resident_memory_is_more_than_an_interpreter() -> None:
    resident = resident_bytes()
    assert resident is None or resident > 1_000_000
