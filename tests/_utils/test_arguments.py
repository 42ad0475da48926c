"""Argument checks: valid values pass, others are rejected with a remedy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pts_scott._utils.arguments import (
    named_arguments,
    nearest,
    one_of,
    real_number,
    switch,
    whole_number,
    whole_numbers,
)
from pts_scott.errors import ArgumentError, UnknownArgumentError


def test_suggestion_is_the_most_similar_name_or_all_names():
    assert nearest("lerning_rate", ["gamma", "learning_rate"]) == (
        "Did you mean 'learning_rate'?"
    )
    assert nearest("lr", ["gamma", "learning_rate"]) == "Did you mean 'learning_rate'?"
    assert nearest("zzz", ["a", "b"]) == "Known names: 'a', 'b'."


def test_unknown_argument_is_rejected_with_a_suggestion():
    class Example:
        @named_arguments
        def __init__(self, gamma=1, *, alpha=2):
            self.seen = dict(self.given_arguments)

    assert Example(3, alpha=4).seen == {"gamma": 3, "alpha": 4}
    with pytest.raises(UnknownArgumentError, match="Example .*'gama'.* mean 'gamma'"):
        Example(gama=1)


def test_words_are_checked():
    assert one_of("context", "full", ("full", "padded")) == "full"
    with pytest.raises(ArgumentError, match="one of 'full', 'padded'. Did you mean"):
        one_of("context", "fall", ("full", "padded"))
    for value in ("zzz", 3):
        with pytest.raises(ArgumentError, match=r"one of 'full', 'padded'\.$"):
            one_of("context", value, ("full", "padded"))


def test_numbers_are_checked():
    assert whole_number("n", np.int64(3)) == 3
    assert whole_numbers("n", (1, 2)) == [1, 2]
    assert real_number("x", 0) == 0.0
    assert switch("flag", False) is False
    for value in (0, 1.5, True, "3"):
        with pytest.raises(ArgumentError, match="whole number of at least 1"):
            whole_number("n", value)
    with pytest.raises(ArgumentError, match="at least 1 and at most 5"):
        whole_number("n", 6, maximum=5)
    for value in (5, "12"):
        with pytest.raises(ArgumentError, match="a list of whole numbers"):
            whole_numbers("n", value)
    with pytest.raises(ArgumentError, match="n is empty"):
        whole_numbers("n", [])
    for value in (-1, math.nan, math.inf, "1", True):
        with pytest.raises(ArgumentError, match="number of at least 0"):
            real_number("x", value)
    with pytest.raises(ArgumentError, match="greater than 0 and at most 1"):
        real_number("x", 0, maximum=1, exclusive=True)
    with pytest.raises(ArgumentError, match="True or False"):
        switch("flag", 1)
