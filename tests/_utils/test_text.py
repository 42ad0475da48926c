"""Texts for messages are short, whatever they quote."""

from __future__ import annotations

from pts_scott._utils.text import cause, one_line, quote, shorten


def test_long_values_are_truncated():
    assert quote("a") == "'a'"
    assert quote("x" * 100) == "'" + "x" * 79 + "… (102 characters)"


def test_foreign_errors_fit_on_one_line():
    assert one_line(ValueError("first\n  second.")) == "first second"
    assert one_line(ValueError("x" * 400)) == "x" * 300 + "…"
    assert cause(KeyError("a")) == "KeyError: 'a'"
    assert cause(ValueError()) == "ValueError"


def test_long_lists_show_their_first_items_and_their_length():
    assert shorten(["a", "b"]) == "'a', 'b'"
    assert shorten(list("abc"), limit=2) == "'a', 'b', … (3 in all)"
