"""Candidate policies: strata that may be worth drawing from, for windows of any kind."""

from __future__ import annotations

from pts_scott.data.offsets import step_days
from pts_scott.data.window_index import WindowIndex
from pts_scott.strata.calendar import Calendar, default_stratifier
from pts_scott.strata.learned import Learned
from pts_scott.strata.policies import BySeries
from pts_scott.strata.policy import Policy

LEARNED = 32  # learned strata
MAX_SERIES = 256  # beyond, a probe has too few windows of each


def candidate_policies(windows: WindowIndex, given: Policy | None) -> dict[str, Policy]:
    """Return the policies to compare, by label.

    Parameters
    ----------
    windows
        The index.
    given
        The user's policy; None for none.
    """
    offset = windows.series.timeline.offset
    days, series = step_days(offset), len(windows.series.item_ids)
    policies: list[Policy] = [] if given is None else [given]
    if 2 <= series <= MAX_SERIES:
        policies.append(BySeries())
        if _has_weekends(windows) and 2 * series <= MAX_SERIES:
            policies.append(BySeries() * Calendar(["weekend"]))
    if days < 1:
        policies.append(Calendar(["hour"]))
    policies += [default_stratifier(offset), Learned(LEARNED)]
    found: dict[str, Policy] = {}
    for policy in policies:
        found.setdefault(label(policy), policy)
    return found


def label(policy: Policy) -> str:
    """Return the name of a policy in tables and sentences."""
    return str(policy).replace("Stratifier.", "")


def _has_weekends(windows: WindowIndex) -> bool:
    """Return whether some forecast starts are on weekends, and others are not."""
    moments = windows.series.timeline.moments[windows.starts()]
    if step_days(windows.series.timeline.offset) >= 7:
        return False
    return len(set(moments.weekday >= 5)) == 2
