"""Progress of many runs: a line per finished run, and a bar on terminals."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

if TYPE_CHECKING:
    from pts_scott.experiments.config import Experiment
    from pts_scott.experiments.curve import Point

BAR_FORMAT = (
    "{l_bar}{bar}| {n_fmt}/{total_fmt}{unit} "
    "[{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]"
)


def terminal_bar(total: float, unit: str, **kwargs: Any) -> tqdm:
    """Return a progress bar on standard error, disabled if that is not a terminal.

    Parameters
    ----------
    total
        The value at which it is full.
    unit
        What is counted, with a leading space.
    kwargs
        Further arguments of tqdm, which override the defaults.
    """
    defaults = {
        "unit_scale": True,
        "bar_format": BAR_FORMAT,
        "smoothing": 0,  # the mean rate: some runs of a benchmark are faster than others
        "dynamic_ncols": True,
        "leave": False,
        "file": sys.stderr,
        "disable": None,
    }
    return tqdm(total=total, unit=unit, **defaults | kwargs)


def advance_to(bar: tqdm, value: float) -> None:
    """Move a bar to a value, at most to its end."""
    bar.update(min(value, bar.total) - bar.n)


def budget_of(experiment: Experiment) -> tuple[float, str]:
    """Return the budget of a run and its unit: seconds if there is a time budget."""
    if experiment.time_budget:
        return float(experiment.time_budget), " s"
    return float(experiment.gradient_budget or 1), " gradients"


class Progress:
    """Progress of a benchmark.

    Lines go to ``say``; on a terminal a bar shows the share of the budget that is used.
    Use it as a context manager, which closes the bar.

    Parameters
    ----------
    budgets
        Seconds, or another measure of the duration, of each run to be made.
    say
        Where lines go.
    unit
        The unit of the budgets, with a leading space.
    """

    def __init__(
        self,
        budgets: Sequence[float],
        say: Callable[[str], None] = tqdm.write,
        unit: str = "",
    ) -> None:
        self._runs, self._budget, self._say = len(budgets), sum(budgets), say
        self._began = time.perf_counter()
        self._done, self._spent = 0, 0.0
        self._bar = terminal_bar(self._budget, unit)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def finished(self, label: str, record: dict[str, Any], budget: float) -> None:
        """Report the outcome of a run, and the remaining time."""
        self._done += 1
        self._spent += budget
        if record["status"] == "failed":
            outcome = f"FAILED: {record['error']}"
        elif record["status"] == "diverged":
            outcome = f"diverged after {record['steps']} steps"
        else:
            outcome = (
                f"train {record['train_loss']:.4g}, test {record['test_loss']:.4g}, "
                f"{record['steps']} steps"
            )
        self._say(f"[{self._done}/{self._runs}] {label}: {outcome}{self._remaining()}")
        advance_to(self._bar, self._spent)

    def _remaining(self) -> str:
        if self._done == self._runs:
            return ""
        elapsed = time.perf_counter() - self._began
        seconds = elapsed * (self._budget - self._spent) / self._spent
        return f"; about {format_duration(seconds)} left"

    def watch(self, label: str, budget: float) -> Callable[[Point], None]:
        """Return a function that shows the points of the current run on the bar."""
        self._bar.set_description_str(label, refresh=False)
        start = self._spent

        def show(point: Point) -> None:
            self._bar.set_postfix_str(f"train {point.train_loss:.4g}", refresh=False)
            advance_to(self._bar, start + min(point.share, 1.0) * budget)

        return show


def format_duration(seconds: float) -> str:
    """Return a duration in the unit that suits it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
