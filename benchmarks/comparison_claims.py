"""Paragraphs on the paper's claims, and on what was expected before the runs.

The words follow from the counts: a claim holds where it does in more than half of the
settings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd
from comparison_results import LARGE, PAPER, PER, count_verdicts, where
from equal_time_tables import DEFAULTS

from pts_scott.experiments.report.formatting import format_share
from pts_scott.experiments.report.reach import NOT_REACHED
from pts_scott.experiments.report.welch import (
    UNDECIDED,
    VERDICTS,
    Difference,
    Sample,
)
from pts_scott.experiments.results import LOSS_COLUMNS

HOLDS, NOT = "Holds here.", "Does not hold here."
PER_STEP = "Holds per step, but not per second."
PER_SECOND = "Holds per second, but not per step."
OPEN = "Not decided here."
SGD_FAMILY = ("SGD", "SCSG", PAPER, LARGE)
LESS_VARIANCE = 0.9  # of all: what counts as less
SAMPLED = ("MLP", "N-BEATS-small")  # the models of the expectation on `auto`
#: The expectation on the libraries' own training: models and data, whose time, how often.
FASTER = tuple(
    f"{model}/{data}"
    for model in ("SimpleFeedForward", "DeepAR")
    for data in ("electricity-321x840", "traffic-21x17544")
)
TIMES = 3.0


class Claims:
    """What the results say about the paper's claims, and about expectations.

    Parameters
    ----------
    summary, verdicts
        As returned by ``summarize_runs`` and ``compute_verdicts``.
    variance
        Measured variances of samplers, with a column ``setting``.
    equal_time
        Rows of ``equal_time_tables.summarise`` by library.
    missing
        Names of the settings that were not run.
    """

    def __init__(
        self,
        summary: pd.DataFrame,
        verdicts: pd.DataFrame,
        variance: pd.DataFrame,
        equal_time: Mapping[str, Sequence[Mapping[str, object]]],
        missing: Sequence[str],
    ) -> None:
        self._summary, self._variance = summary, variance
        self._equal_time, self._missing = equal_time, missing
        known = summary.drop_duplicates("setting").set_index("setting")
        self._verdicts = verdicts.join(known[["batch_size", "model"]], on="setting")

    # -- the paper's claims -------------------------------------------------------------

    def paragraphs(self) -> str:
        """Return a paragraph on each claim."""
        parts = (
            self._on_variance(),
            self._on_speed("SCott converges faster than SGD", PAPER, "SGD"),
            self._on_speed(
                "The same with large anchors, tuned b and K", LARGE, "SGD", cost=True
            ),
            self._on_speed("Strata make a better anchor than SCSG's", PAPER, "SCSG"),
            self._on_step_sizes(),
            self._on_speed("S-Adam converges faster than Adam", "S-Adam", "Adam"),
            self._on_speed(
                "S-Adagrad converges faster than Adagrad", "S-Adagrad", "Adagrad"
            ),
            self._on_families(),
            self._on_generalization(),
        )
        return "\n\n".join(parts)

    def _on_variance(self) -> str:
        later = self._variance[
            (self._variance["sampler"] == "stratified") & (self._variance["step"] > 0)
        ]
        within = later.groupby("setting")["within"].median()
        less = int((within < LESS_VARIANCE).sum())
        low, middle, high = map(format_share, within.quantile([0.0, 0.5, 1.0]))
        return _paragraph(
            "Strata of timestamps reduce the variance of a gradient",
            HOLDS if less > len(within) / 2 else NOT,
            "The share of a gradient's variance that lies within the paper's strata is "
            "what a stratified mini-batch has of a uniform one's, if each stratum has "
            f"whole windows in it. It was below {format_share(LESS_VARIANCE)} in {less} "
            f"of {_settings(len(within))}: {middle} in the median, {low} to {high} in "
            "all (medians of the measurements along a run; estimates may exceed 100 %).",
        )

    def _on_speed(
        self, claim: str, challenger: str, baseline: str, *, cost: bool = False
    ) -> str:
        rows = self._of(challenger, baseline, "training")
        verdict = _verdict(rows)
        sentences = []
        for size, own in rows.groupby("batch_size"):
            settings = own["setting"].nunique()
            counts = ", ".join(
                f"{count_verdicts(own.loc[own['at'] == at, 'verdict'])} {where}"
                for at, where in PER.items()
            )
            sentences.append(
                f"M = {size}, {_settings(settings)}: training loss better / tied / worse "
                f"{counts}."
            )
        text = " ".join(sentences)
        if cost:
            text += f" {self._costs(challenger, baseline)}"
        return _paragraph(claim, verdict, text)

    def _costs(self, challenger: str, baseline: str) -> str:
        cells = self._summary.pivot(index="setting", columns="optimizer")
        steps = cells["steps"][challenger] / cells["steps"][baseline]
        gradients = cells["gradients"][challenger] / cells["gradients"][baseline]
        return (
            f"In the same time it makes {format_share(steps.median())} of {baseline}'s "
            f"steps, and computes {gradients.median():.1f} times the gradients (medians "
            "over the settings)."
        )

    def _on_step_sizes(self) -> str:
        sizes = self._summary.pivot(
            index="setting", columns="optimizer", values="learning_rate"
        )
        counts = []
        whose = {PAPER: "SCott's", LARGE: "that of SCott with large anchors"}
        for name in whose:
            ratio = sizes[name] / sizes["SGD"]
            larger, smaller = int((ratio > 1.001).sum()), int((ratio < 0.999).sum())
            equal = len(ratio) - larger - smaller
            counts.append((name, larger, equal, smaller))
        total = len(sizes)
        text = "; ".join(
            f"{whose[name]} is larger in {larger}, equal in {equal}, smaller in {smaller}"
            for name, larger, equal, smaller in counts
        )
        holds = counts[0][1] > total / 2
        return _paragraph(
            "SCott can take larger step sizes than SGD",
            HOLDS if holds else NOT,
            f"Of the tuned step sizes in {_settings(total)}, {text}.",
        )

    def _on_families(self) -> str:
        counts = dict.fromkeys(("S-Adam", "S-Adagrad"), 0)
        total = self._summary["setting"].nunique()
        for _, cells in self._summary.groupby("setting"):
            cells = cells.set_index("optimizer")
            family = cells.loc[list(SGD_FAMILY)]
            finished = family[family["outcome"] == ""]
            for name in counts:
                if cells.loc[name, "outcome"]:
                    continue  # an optimizer that diverges in any seed loses
                pair = [Sample.of(cells.loc[name], "train_loss")]
                if len(finished):
                    best = finished["train_loss_mean"].idxmin()
                    pair.append(Sample.of(family.loc[best], "train_loss"))
                counts[name] += len(pair) == 1 or Difference(*pair).verdict == "better"
        holds = all(count > total / 2 for count in counts.values())
        text = " and ".join(f"{name} in {count}" for name, count in counts.items())
        return _paragraph(
            "S-Adam and S-Adagrad outperform the optimizers of SGD's family",
            HOLDS if holds else NOT,
            f"By training loss at equal time, {text} of {_settings(total)} ended better "
            "than that of SGD, SCSG and both SCotts with the lowest mean.",
        )

    def _on_generalization(self) -> str:
        rows = self._verdicts[self._verdicts["at"] == "end"]
        pairs = ((PAPER, "SGD"), (LARGE, "SGD"), ("S-Adam", "Adam"))
        pairs += (("S-Adagrad", "Adagrad"),)
        gained = kept = 0
        for challenger, baseline in pairs:
            own = where(rows, challenger=challenger, baseline=baseline)
            if own.empty:
                continue
            both = own.pivot(index="setting", columns="loss", values="verdict")
            better = both[both["training"] == "better"]
            gained += len(better)
            kept += int((better["test"] != "worse").sum())
        return _paragraph(
            "What SCott gains in training is not lost on the test range",
            (HOLDS if 2 * kept > gained else NOT) if gained else OPEN,
            f"Of {gained} comparisons that a method with anchors won by training loss at "
            f"equal time, it lost {gained - kept} by test loss.",
        )

    # -- what was expected --------------------------------------------------------------

    def expectations(self) -> str:
        """Return what was expected before the runs, what was found, and the outcome."""
        rows = [
            self._large_anchors(),
            self._auto("Adam"),
            self._auto("SGD"),
            self._libraries(),
        ]
        lines = ["| expected | found | |", "|---|---|---|"]
        lines += [f"| {' | '.join(row)} |" for row in rows]
        return "\n".join(lines)

    def _large_anchors(self) -> tuple[str, str, str]:
        rows = self._of(LARGE, "SGD", "training")
        rows = rows[(rows["at"] == "steps") & (rows["batch_size"] == 1)]
        won, lost = rows["verdict"] == "better", rows["verdict"] == "worse"
        # The difference is that of the seeds that finished; divergence loses.
        lower = int((((rows["difference"] < 0) & ~lost) | won).sum())
        better = int(won.sum())
        still = sum(name.endswith("-M1") for name in self._missing)
        return (
            "SCott with large anchors is below SGD per step in at least 8 of 10 settings "
            "with M = 1",
            f"lower mean in {lower} of {len(rows)}, distinguished in {better}",
            _outcome(reached=lower >= 8, impossible=len(rows) - lower > 2, still=still),
        )

    def _auto(self, rule: str) -> tuple[str, str, str]:
        counts = {}
        for loss in LOSS_COLUMNS:
            rows = self._of(f"auto {rule}", rule, loss)
            counts[loss] = rows[(rows["at"] == "end") & rows["model"].isin(SAMPLED)]
        rows = counts["test"]
        tested, trained = (
            count_verdicts(counts[loss]["verdict"]) for loss in ("test", "training")
        )
        better, _, worse = (int((rows["verdict"] == v).sum()) for v in VERDICTS)
        models = tuple(model.lower() for model in SAMPLED)  # as settings begin
        still = sum(name.startswith(models) for name in self._missing)
        impossible = worse > 0 or better + still < 6
        return (
            f"`auto` with {rule} is never worse than {rule} by test loss at equal time, "
            "and better in at least 6 of the 16 settings of MLP and N-BEATS",
            f"better / tied / worse: {tested} of {len(rows)}; by training loss {trained}",
            _outcome(
                reached=better >= 6 and not worse, impossible=impossible, still=still
            ),
        )

    def _libraries(self) -> tuple[str, str, str]:
        rows = {
            str(row["setting"]): row
            for row in self._equal_time.get("GluonTS", ())
            if row["setting"] in FASTER and row["side"] == DEFAULTS
        }
        judged = [float(str(row["test, factor"])) for row in rows.values()]
        found = [
            f"{setting}: {_times(factor)} (training loss: "
            f"{_times(float(str(rows[setting]['training, factor'])))})"
            for setting, factor in zip(rows, judged)
        ]
        slow = sum(not factor >= TIMES for factor in judged)  # not reached, too
        return (
            "`ScottTrainer` with its defaults and a time budget reaches GluonTS' final "
            f"test loss {TIMES:g} times as fast as GluonTS' own trainer, with M = 32 and "
            "compilation included where it is used",
            "; ".join(found) or "not measured",
            _outcome(
                reached=not slow,
                impossible=slow > 0,
                still=len(FASTER) - len(judged),
            ),
        )

    def _of(self, challenger: str, baseline: str, loss: str) -> pd.DataFrame:
        keys = {"challenger": challenger, "baseline": baseline, "loss": loss}
        return where(self._verdicts, **keys)


def _paragraph(claim: str, verdict: str, text: str) -> str:
    return f"**{claim}. {verdict}** {text}"


def _verdict(rows: pd.DataFrame) -> str:
    """Return whether a claim of speed holds in more than half of the settings."""
    total = rows["setting"].nunique()
    compared = rows[rows["at"].isin(("steps", "end"))]
    if (compared["verdict"] == UNDECIDED).all():
        return OPEN
    better = {
        at: int((rows.loc[rows["at"] == at, "verdict"] == "better").sum()) for at in PER
    }
    per_step, per_second = better["steps"] > total / 2, better["end"] > total / 2
    if per_step:
        return HOLDS if per_second else PER_STEP
    return PER_SECOND if per_second else NOT


def _times(factor: float) -> str:
    return NOT_REACHED if math.isnan(factor) else f"{factor:.1f} ×"


def _outcome(*, reached: bool, impossible: bool, still: int) -> str:
    if impossible:
        return "missed"
    return "still open" if still else "met" if reached else "missed"


def answer(verdicts: pd.Series[str]) -> str:
    """Return in words in how many settings something was better."""
    count = verdicts.value_counts()
    better, _, worse = (int(count.get(verdict, 0)) for verdict in VERDICTS)
    if better > len(verdicts) / 2:
        return "in most settings"
    if worse > len(verdicts) / 2:
        return "no, worse in most"
    if better and worse:
        return "in some, worse in others"
    if better or worse:
        return "in some, worse in none" if better else "no, worse in some"
    return "no difference"


def _settings(count: int) -> str:
    return f"{count} setting{'s' * (count != 1)}"
