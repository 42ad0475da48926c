"""Progress: a bar on terminals, lines elsewhere, and an estimate of the time left."""

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
#: Without a bar, seconds after which a line is written during a long run.
LINE_SECONDS = 60.0


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


class TimeLeft:
    """Estimates the remaining time from the share of the work that is done."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def after(self, share: float) -> str:
        """Return the end of a line: "; about 5 min left", or nothing at the end."""
        if not 0 < share < 1:
            return ""
        elapsed = time.perf_counter() - self._began
        return f"; about {format_duration(elapsed * (1 - share) / share)} left"


class Meter:
    """Progress of one piece of work: a bar on terminals, now and then a line elsewhere.

    Use it as a context manager, which closes the bar.

    Parameters
    ----------
    label
        What is being done.
    total, unit
        The value at which the bar is full, and what it counts.
    say
        Where lines go.
    """

    def __init__(
        self, label: str, total: float, unit: str, say: Callable[[str], None]
    ) -> None:
        self._label, self._total, self._say = label, total, say
        self._left, self._last_line = TimeLeft(), time.perf_counter()
        self._bar = terminal_bar(total, unit, desc=label)

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def line(self, text: str, share: float) -> None:
        """Write a line with the remaining time, and move the bar."""
        self._say(text + self._left.after(share))
        self._last_line = time.perf_counter()
        advance_to(self._bar, share * self._total)

    def advance(self, share: float) -> None:
        """Move the bar; without one, write a line if there was none for a while."""
        advance_to(self._bar, share * self._total)
        if self._bar.disable and time.perf_counter() - self._last_line >= LINE_SECONDS:
            self.line(f"{self._label}: {min(share, 1):.0%}", share)


class Progress:
    """Progress of a benchmark.

    Lines go to ``say``; on a terminal a bar shows the share of the budget that is used.
    Elsewhere there is a line now and then during a long run. Use it as a context manager,
    which closes the bar.

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
        self._left, self._last_line = TimeLeft(), time.perf_counter()
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
        left = "" if self._done == self._runs else self._remaining(self._spent)
        self._line(f"[{self._done}/{self._runs}] {label}: {outcome}{left}")
        advance_to(self._bar, self._spent)

    def watch(
        self, label: str, budget: float
    ) -> tuple[Callable[[Point], None], Callable[[float], None]]:
        """Return functions that show a point, and the share, of the current run."""
        self._bar.set_description_str(label, refresh=False)

        def show(point: Point) -> None:
            self._bar.set_postfix_str(f"train {point.train_loss:.4g}", refresh=False)
            advance(point.share)

        def advance(share: float) -> None:
            spent = self._spent + min(share, 1.0) * budget
            advance_to(self._bar, spent)
            quiet = time.perf_counter() - self._last_line
            if self._bar.disable and quiet >= LINE_SECONDS:
                place = f"[{self._done + 1}/{self._runs}] {label}: {min(share, 1):.0%}"
                self._line(place + self._remaining(spent))

        return show, advance

    def _remaining(self, spent: float) -> str:
        return self._left.after(spent / self._budget)

    def _line(self, line: str) -> None:
        self._say(line)
        self._last_line = time.perf_counter()


def format_duration(seconds: float) -> str:
    """Return a duration in the unit that suits it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
