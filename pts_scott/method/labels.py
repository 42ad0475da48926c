"""Tables by stratum label: one number for each stratum of a partition."""

from __future__ import annotations

from collections.abc import Mapping

from pts_scott._utils.arguments import nearest
from pts_scott._utils.text import quote, shorten
from pts_scott.errors import ArgumentError
from pts_scott.strata.partition import Partition


def values_by_label(
    argument: str,
    what: str,
    table: Mapping[str, float],
    strata: Partition,
    otherwise: str,
) -> list[float]:
    """Return the number of each stratum, in the order of the strata.

    Parameters
    ----------
    argument, what
        The argument that holds the table, and what its numbers are: for messages.
    table
        The numbers by label.
    strata
        The partition.
    otherwise
        What a message about an absent label ends with.

    Raises
    ------
    ArgumentError
        If the table names an unknown stratum, or omits one.
    """
    labels = strata.labels(range(len(strata)))
    for name in table:
        if name not in labels:
            raise ArgumentError(
                f"{argument}: {strata.stratifier} makes no stratum {quote(name)}. "
                f"{nearest(name, labels)}"
            )
    absent = [label for label in labels if label not in table]
    if absent:
        raise ArgumentError(
            f"{argument}: no {what} for {shorten(absent)}; every stratum of "
            f"{strata.stratifier} needs one, {otherwise}."
        )
    return [table[label] for label in labels]
