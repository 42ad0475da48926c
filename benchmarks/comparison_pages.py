"""The pages of the comparison: every number is computed from the store."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path

import equal_time_tables
from autogluon_tables import AUTOGLUON_COLUMNS, summarise_fits
from comparison_claims import Claims, answer
from comparison_results import LARGE, PAPER, PER, Results, count_verdicts, where
from equal_time_tables import TAIL
from optimizer_tables import auto_table, control_table, scott_table, step_size_table
from regime_tables import disturbed_sentence, fall_sentence, fall_table
from tables import markdown
from variance_tables import control_variate_table, sampler_table

from pts_scott.experiments.config import LEARNING_RATES
from pts_scott.experiments.report import comparison_tables, figures
from pts_scott.experiments.report.formatting import format_share
from pts_scott.experiments.report.page import cost_table
from pts_scott.experiments.report.tables import Row, Table, backtest_table, loss_table

#: Whose curves against steps, gradients and seconds the page shows, if it has been run.
SHOWN = ("var-synthetic-M1", ("SGD", PAPER, LARGE, "SCSG", "auto SGD"))

#: What is asked, the pair that answers it, and by which loss.
QUESTIONS = (
    ("SCott with large anchors against SGD", (LARGE, "SGD"), "training"),
    ("SCott as in the paper against SGD", (PAPER, "SGD"), "training"),
    ("SCott against SCSG", (PAPER, "SCSG"), "training"),
    ("S-Adam against Adam", ("S-Adam", "Adam"), "training"),
    ("S-Adagrad against Adagrad", ("S-Adagrad", "Adagrad"), "training"),
    ("auto against SGD", ("auto SGD", "SGD"), "test"),
    ("auto against Adam", ("auto Adam", "Adam"), "test"),
    (
        "learned strata with spread allocation against Adam",
        *(("learned strata, spread, Adam", "Adam"), "test"),
    ),
    (
        "at M = 1, stratified steps of B windows against plain ones of B",
        *(("stratified Adam", "Adam, B windows"), "test"),
    ),
)


class Pages:
    """Everything that the pages show.

    Parameters
    ----------
    results
        What was run, and what it shows.
    docs
        The folder with ``results.md``, where the other pages are written.
    """

    def __init__(self, results: Results, docs: Path) -> None:
        self._results, self._docs = results, docs

    @cached_property
    def claims(self) -> Claims:
        """The verdicts on the paper's claims, and on expectations."""
        found = self._results
        return Claims(
            found.summary, found.verdicts, found.variance, found.equal_time, found.missing
        )

    def write(self) -> None:
        """Write the appendices, the pictures, and the generated parts of the page."""
        for path, text in self.texts().items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        images = self._docs / "images"
        reach = self._results.reach
        rows = reach[(reach["loss"] == "test") & reach["target"].notna()]
        figures.save_figure(figures.reach_figure(rows), images / "results-reach.png")
        setting, names = SHOWN
        own = where(self._results.curves, setting=setting)
        own = own[own["optimizer"].isin(names)]
        if len(own):
            figure = figures.training_figure(own, "MSE")
            figures.save_figure(figure, images / "results-steps.png")

    def texts(self) -> dict[Path, str]:
        """Return the texts of all pages by path."""
        results, page = self._results, self._docs / "results.md"
        text = page.read_text(encoding="utf-8")
        blocks: dict[str, Callable[[], str]] = {
            "progress": self.progress,
            "regime": lambda: (
                f"{fall_sentence(results.falls)} {disturbed_sentence(results.runs)}"
            ),
            "answers": self.answers,
            "claims": self.claims.paragraphs,
            "expectations": self.claims.expectations,
            "scott": partial(scott_table, results),
            "auto": partial(auto_table, results),
            "step sizes": partial(step_size_table, results),
            "control": partial(control_table, results),
            "libraries": self.library_tables,
        }
        tables = self.variance_tables()
        blocks |= {name: tables[name].markdown for name in tables}
        for name, block in blocks.items():
            text = _fill(text, name, block())
        return {page: text, **self.appendices()}

    def appendices(self) -> dict[Path, str]:
        """Return the generated pages by path."""
        found = self._results
        matrix = comparison_tables.verdict_matrix(found.verdicts, "equal training time")
        costs = [
            f"## {setting}\n\n{cost_table(cells).markdown()}"
            for setting, cells in found.summary.groupby("setting", sort=True)
        ]
        shares = [
            f"## {setting}\n\n{comparison_tables.reach_table(own, TAIL).markdown()}"
            for setting, own in found.reach.groupby("setting", sort=True)
        ]
        pages = {
            "counts": ("Every optimizer, counted", self.count_table().markdown()),
            "losses": (
                "Losses at equal time",
                f"Losses are means over the last {format_share(TAIL)} of a run.\n\n"
                f"{loss_table(found.summary).markdown()}",
            ),
            "verdicts": ("Verdicts by setting", matrix.markdown()),
            "reach": ("Costs of the plain optimizer's loss", "\n".join(shares)),
            "costs": ("Step sizes and costs", "\n".join(costs)),
            "backtest": ("Backtest", backtest_table(found.summary).markdown()),
            "regime": (
                "Were the runs long enough?",
                fall_table(found.falls).markdown(),
            ),
        }
        note = (
            "Written by `python benchmarks/comparison.py page` from the files beside it."
        )
        return {
            self._docs / "results" / f"{name}.md": f"# {title}\n\n{note}\n\n"
            f"{text.rstrip()}\n"
            for name, (title, text) in pages.items()
        }

    def progress(self) -> str:
        """Return how much of the comparison has been run."""
        found = self._results
        stored = found.runs["setting"].nunique()
        text = f"{stored} settings, {len(found.runs):,} runs."
        if found.missing:
            names = ", ".join(f"`{name}`" for name in found.missing)
            text = (
                f"**{stored} of {stored + len(found.missing)} settings have been run**, "
                f"{len(found.runs):,} runs; missing: {names}."
            )
        return f"{text} {self._edges()}"

    def _edges(self) -> str:
        """Return how many tuned step sizes are at an edge of the grid."""
        sizes = self._results.summary["learning_rate"]
        ends = [
            int((sizes <= min(LEARNING_RATES)).sum()),
            int((sizes >= max(LEARNING_RATES)).sum()),
        ]
        return (
            f"Of {len(sizes)} tuned step sizes {ends[0]} are the smallest of the grid, "
            f"and {ends[1]} the largest."
        )

    def answers(self) -> str:
        """Return the answers of the most important comparisons, as a table."""
        rows, verdicts = [], self._results.verdicts
        for text, (challenger, baseline), loss in QUESTIONS:
            own = where(verdicts, challenger=challenger, baseline=baseline, loss=loss)
            if own.empty:
                continue
            counts = [count_verdicts(where(own, at=at)["verdict"]) for at in PER]
            rows.append(Row.of(text, answer(where(own, at="end")["verdict"]), *counts))
        compared = [loss for *_, loss in QUESTIONS].count("training")
        total = self._results.runs["setting"].nunique()
        caption = (
            "Number of settings in which the first was better / tied / worse (Welch's "
            f"test of the seeds, p < 0.05), of the {total} that have been run; the words "
            f"follow from the counts at equal time. The first {compared} rows compare "
            "training losses, the others test losses."
        )
        return Table(["", "Better?", *PER.values()], rows, caption, labels=2).markdown()

    def count_table(self) -> Table:
        """Return how often each optimizer was better, tied and worse."""
        found, at = self._results, comparison_tables.EQUAL_TIME
        return comparison_tables.count_table(
            found.summary, found.verdicts, found.reach, at, TAIL
        )

    def library_tables(self) -> str:
        """Return the tables against the libraries' own training loops."""
        parts = [
            f"### {name}\n\n{equal_time_tables.render(rows)}"
            for name, rows in self._results.equal_time.items()
        ]
        fits = self._results.store.read("equal_time-autogluon")
        if len(fits):
            table = markdown(summarise_fits(fits), AUTOGLUON_COLUMNS)
            parts.append(f"### AutoGluon\n\n{table}")
        return "\n\n".join(parts) or "Not measured yet."

    def variance_tables(self) -> dict[str, Table]:
        """Return what was measured of the variance of samplers, by block of the page."""
        if self._results.variance.empty:
            return {}
        first = self._results.runs.drop_duplicates("setting").set_index("setting")
        return {
            "variance": sampler_table(self._results.variance),
            "why": control_variate_table(self._results.variance, first["batch_size"]),
        }


def _fill(text: str, name: str, block: str) -> str:
    """Return a page with the content between the marks of a block replaced."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise SystemExit(f"docs/results.md has no single block {name!r}.")
    return pattern.sub(lambda _: f"{begin}\n\n{block.strip()}\n\n{end}", text)
