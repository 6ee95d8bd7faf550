"""What benchmarks take on the command line as some of a list of names."""

import argparse
from collections.abc import Callable, Sequence


def some_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    """An argparse type: ``W1,W2`` -> ["W1", "W2"], each of them in ``known``."""

    def names(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := [name for name in chosen if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown {', '.join(unknown)}; there are {', '.join(known)}")
        return chosen

    return names
