"""Offsets: frequencies and starts are parsed, counted, or refused with a remedy."""

from __future__ import annotations

import pandas as pd
import pytest

from pts_scott.data.offsets import moment_of, ordinal_of, parse_offset
from pts_scott.errors import DataError, FrequencyError


@pytest.mark.parametrize("freq", ["h", "2h", "15min", "D"])
def test_ordinals_of_timestamps_and_periods_agree(freq):
    moment = pd.Timestamp("2021-05-06 12:00")
    assert ordinal_of(moment, freq) == ordinal_of(pd.Period(moment, freq))


def test_time_zone_is_rejected():
    with pytest.raises(DataError, match="tz_localize"):
        moment_of(pd.Timestamp("2020-06-01 09:00", tz="Europe/Berlin"))


@pytest.mark.parametrize("start", ["yesterday-ish", None, pd.NaT])
def test_invalid_date_is_rejected(start):
    with pytest.raises(DataError, match="is not a date"):
        moment_of(start)


def test_unknown_frequency_is_rejected():
    with pytest.raises(FrequencyError, match="not a frequency that pandas knows"):
        parse_offset("fortnight")


def test_negative_frequency_is_rejected():
    with pytest.raises(FrequencyError, match="forward in time"):
        parse_offset("-1h")


def test_timestamp_without_frequency_has_no_ordinal():
    with pytest.raises(FrequencyError, match="freq='h'"):
        ordinal_of(pd.Timestamp("2020-01-01"))
