"""Which plain optimizer each optimizer of a setting is compared with."""

from __future__ import annotations

import pandas as pd

PLAIN = "plain"
Pair = tuple[str, str]  # a challenger and its baseline

#: Compared in any case: whether strata make a better anchor than random windows.
PAPER_PAIR: Pair = ("SCott", "SCSG")


def plain_partner(cells: pd.DataFrame, optimizer: str) -> str | None:
    """Return the plain optimizer with the same update rule: SGD for SCott, for example.

    Of several, it is the one with the setting's M windows per step, drawn with
    replacement, or else the first of the table.

    Parameters
    ----------
    cells
        The rows of one setting in the table of ``summarize_runs``, by optimizer.
    optimizer
        One of them; the partner of a plain optimizer may be the optimizer itself.

    Returns
    -------
    str or None
        The name; None if no plain optimizer has that update rule.
    """
    plain = _plain_optimizers(cells, optimizer)
    usual = (plain["windows_per_step"] == plain["batch_size"]) & plain["replacement"]
    names = [*plain.index[usual], *plain.index]
    return str(names[0]) if names else None


def find_pairs(cells: pd.DataFrame) -> list[Pair]:
    """Return which optimizers of a setting are compared with which.

    Each is compared with its plain partner; if its steps use another number of windows,
    also with the plain optimizer of as many windows; and SCott with SCSG.
    """
    pairs = []
    for optimizer in cells.index:
        partner = plain_partner(cells, optimizer)
        if partner is None or partner == optimizer:
            continue
        pairs.append((str(optimizer), partner))
        plain, windows = _plain_optimizers(cells, optimizer), cells["windows_per_step"]
        if windows[optimizer] != windows[partner]:
            controls = plain.index[plain["windows_per_step"] == windows[optimizer]]
            pairs += [(str(optimizer), str(c)) for c in controls if c != optimizer][:1]
    if set(PAPER_PAIR) <= set(cells.index):
        pairs.append(PAPER_PAIR)
    return pairs


def _plain_optimizers(cells: pd.DataFrame, optimizer: str) -> pd.DataFrame:
    """Return the plain optimizers with the same update rule, including itself."""
    rule = cells.loc[optimizer, "rule"]
    return cells[(cells["method"] == PLAIN) & (cells["rule"] == rule) & (rule != "")]
