"""Policies parsed from text."""

from __future__ import annotations

import pytest

from pts_scott import Stratifier
from pts_scott.errors import ArgumentError

POLICIES = [
    Stratifier.calendar("weekday", "season"),
    Stratifier.periodic(4, unit=24),
    Stratifier.ranges(4) * Stratifier.series(),
    Stratifier.random(49, seed=3),
    Stratifier.finest(),
    Stratifier.kmeans(32),
]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_parse_reads_the_repr_of_a_policy(policy):
    assert repr(Stratifier.parse(repr(policy))) == repr(policy)


def test_class_name_is_optional():
    parsed = Stratifier.parse(" ranges(4) * series() ")
    assert repr(parsed) == repr(Stratifier.ranges(4) * Stratifier.series())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("calender('weekday')", "Did you mean 'calendar'"),
        ("calendar('weekdy')", "weekday"),
        ("ranges()", "missing a required argument: 'count'; the signature is ranges"),
        ("ranges(1)", "at least 2"),
        ("ranges(4) + series()", "expected a policy such as"),
        ("series", "expected a policy such as"),
        ("ranges(print(1))", "expected a policy such as"),
        ("__import__('os').system('x')", "expected a policy such as"),
        ("other.ranges(4)", "expected a policy such as"),
        ("ranges(", "expected a policy such as"),
        ("", "expected a policy such as"),
    ],
)
def test_other_text_raises_and_is_never_executed(text, message):
    with pytest.raises(ArgumentError, match=message.replace("(", r"\(")):
        Stratifier.parse(text)
