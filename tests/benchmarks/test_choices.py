"""Names on the command line."""

import argparse

import pytest

from benchmarks.choices import some_of


def test_names_are_taken_in_their_order() -> None:
    assert some_of(["a", "b", "c"])("c,a") == ["c", "a"]


def test_unknown_ones_are_named_with_those_that_there_are() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"unknown x, ; there are a, b$"):
        some_of(["a", "b"])("a,x,")
