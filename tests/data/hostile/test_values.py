"""Hostile datasets: names, values and lengths of series."""

from __future__ import annotations

import numpy as np
from helpers.hostile_data import (
    CONTEXT,
    HOURS,
    WAVE,
    Case,
    by,
    cases,
    check_case,
    good,
    ids,
    missing,
    series,
    strata,
    target,
    unknown_client,
)

from pts_scott import Stratifier
from pts_scott.errors import (
    DataError,
    EmptyDatasetError,
    InfiniteValuesError,
    ModelError,
    ShortSeriesError,
    StratificationError,
)

LONG = "é" * 100_000


TABLE = {
    "two series with the same name": Case(ids("a", "a")),
    "two series with the same name share a stratum": Case(
        ids("a", "a"), stratifier=Stratifier.series(), check=strata(1)
    ),
    "two series with the same name in the finest strata": Case(
        ids("a", "a"),
        StratificationError,
        "2 are the same; give each series its own item_id",
        stratifier=Stratifier.finest(),
    ),
    "names that are None": Case(
        ids(None, None), stratifier=Stratifier.series(), check=strata(2)
    ),
    "missing names": Case(ids(..., ...), stratifier=Stratifier.series(), check=strata(2)),
    "names that are NaN after a join": Case(
        ids(np.nan, np.nan), stratifier=Stratifier.series(), check=strata(2)
    ),
    "names that are numbers": Case(
        ids(1, 2), stratifier=Stratifier.series(), check=strata(2)
    ),
    "names with unusual characters": Case(
        ids("売上 ☃", "\u202e\x00", "\ud800", ""),
        stratifier=Stratifier.series(),
        check=strata(4),
    ),
    "a very long name": Case(
        ids(LONG, LONG + "!"), stratifier=Stratifier.series(), check=strata(2)
    ),
    "a very long name of a short series": Case(
        lambda: [series(item_id=LONG, target=[1.0])],
        ShortSeriesError,
        "'é+… .100002 characters.. Remove",
        models="var",
    ),
    "a very long name of an infinite series": Case(
        lambda: [series(item_id=LONG, target=np.append(WAVE, np.inf))],
        InfiniteValuesError,
        "mark it as missing",
    ),
    "a very long name of a series of words": Case(
        lambda: [series(item_id=LONG, target=["a"])], DataError, "Give an array"
    ),
    "a very long name where a stratifier fails": Case(
        ids(LONG), StratificationError, "no such client", stratifier=by(unknown_client)
    ),
    # Values.
    "a constant series": Case(target(np.full(60, 3.0)), models="var sff deepar"),
    "a series of zeros": Case(target(np.zeros(60)), models="var sff deepar"),
    "one series without a value": Case(
        lambda: [series(target=missing(HOURS >= 0)), series(item_id="b")],
        models="var sff deepar",
        warns="1 of 2 series have no value at all.*'a'",
    ),
    "only series without a value": Case(
        lambda: [series(target=missing(HOURS >= 0))] * 2,
        EmptyDatasetError,
        "Check how they were read|Fill the gaps",
        models="var sff deepar",
    ),
    "every second value missing": Case(
        target(missing(HOURS % 2 == 0)), models="var sff deepar"
    ),
    "a context without a value": Case(
        target(missing(slice(0, CONTEXT))[:8]), models="var sff deepar"
    ),
    "no observed value in any prediction range": Case(
        target(missing(HOURS >= 2)),
        EmptyDatasetError,
        "none of 53 windows has a value in its prediction range.* Fill the gaps",
        models="var sff",
    ),
    "infinity": Case(
        target(np.append(WAVE, np.inf)),
        InfiniteValuesError,
        "'a' is infinite at 2021-03-03 12:00:00 .* mark it as missing with NaN",
        models="var sff deepar",
    ),
    "minus infinity": Case(
        target(np.append(WAVE, -np.inf)), InfiniteValuesError, "replace the value, or"
    ),
    "values that overflow in single precision": Case(
        target(WAVE * 1e39), InfiniteValuesError, "in torch.float32; replace the value"
    ),
    "huge values": Case(target(WAVE * 1e30), models="var sff deepar"),
    "the largest values of single precision": Case(
        target(WAVE * 5e37), ModelError, "finite losses. Divide the series", "deepar"
    ),
    "denormal values": Case(target(WAVE * 1e-40), models="var sff deepar"),
    "values that underflow in single precision": Case(
        target(WAVE * 1e-300),
        DataError,
        "'a' are so small that all become zero in float32; multiply them, .* 1e300",
        models="var sff deepar",
    ),
    "jumps by many orders of magnitude": Case(
        target(np.where(HOURS % 9, 1.0, 1e30)),
        models="var sff deepar",
        warns="training diverges|loss or gradient is non-finite",
        learns=False,
    ),
    # Lengths.
    "a series without steps": Case(
        target([]),
        EmptyDatasetError,
        "use longer series",
        "deepar",
        warns="left out: 'a'",
    ),
    "one short series, which must be removed": Case(
        lambda: [series(), series(item_id="b", target=WAVE[:2])],
        ShortSeriesError,
        "1 of 2 series are shorter than a window of 8 steps: 'b'. Remove",
        models="var sff",
    ),
    "one short series, which is left out": Case(
        lambda: [series(), series(item_id="b", target=WAVE[:2])],
        models="deepar",
        warns="1 of 2 series are shorter than 3 steps and are left out: 'b'",
        same_as=good,
    ),
    "only short series": Case(
        lambda: [series(target=WAVE[:7])] * 9,
        ShortSeriesError,
        r"9 of 9 series .* \(9 in all\). Remove",
        models="var sff",
    ),
    "one window": Case(target(WAVE[:8]), models="var sff", check=strata(1)),
}


@cases(TABLE)
def test_hostile_values_are_rejected_with_a_remedy_or_train(model, case):
    check_case(model, case)
