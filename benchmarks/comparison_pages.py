"""The pages of the comparison: every number is computed from the store."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path

import equal_time_tables
import pandas as pd
from autogluon_tables import AUTOGLUON_COLUMNS, summarise_fits
from comparison_claims import LARGE, PER, Claims, answer, count_verdicts, where
from comparison_store import SWAPPED, Store, missing_controls
from equal_time_tables import TAIL
from regime_tables import disturbed_sentence, fall_sentence, fall_table, measure_fall
from tables import markdown
from variance_tables import control_variate_table, sampler_table

from pts_scott.experiments.config import LEARNING_RATES
from pts_scott.experiments.report import comparison_tables, figures
from pts_scott.experiments.report.curves import settled_losses
from pts_scott.experiments.report.formatting import DASH, format_mean, format_share
from pts_scott.experiments.report.page import cost_table
from pts_scott.experiments.report.reach import NOT_REACHED, compute_reach, median_share
from pts_scott.experiments.report.summary import summarize_runs
from pts_scott.experiments.report.tables import Row, Table, backtest_table, loss_table
from pts_scott.experiments.report.verdicts import compute_verdicts
from pts_scott.experiments.report.welch import Difference, Sample
from pts_scott.experiments.results import LOSS_COLUMNS

PAPER = "SCott"
PLACES = {"steps": "per step", "gradients": "gradient", "end": "second"}
#: Whose curves against steps, gradients and seconds the page shows, if it has been run.
SHOWN = ("var-synthetic-M1", ("SGD", PAPER, LARGE, "SCSG", "auto SGD"))
LIBRARIES = {"gluonts": "GluonTS", "pytorchts": "PyTorchTS"}

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
    store
        What was run.
    docs
        The folder with ``results.md``, where the other pages are written.
    missing
        Names of the settings that were not run, or not with the comparison's config.
    """

    def __init__(self, store: Store, docs: Path, missing: list[str]) -> None:
        self._store, self._docs, self._missing = store, docs, missing
        runs, self.curves, self.variance = (
            table[~table["setting"].isin(missing)].reset_index(drop=True)
            for table in map(store.read, ("runs", "curves", "variance"))
        )
        self.runs = settled_losses(runs, self.curves, TAIL)
        self.summary = summarize_runs(self.runs)

    @property
    def _budget(self) -> str:
        """Return training time and seeds of the runs, in words."""
        seconds = " or ".join(f"{n:g}" for n in sorted(set(self.runs["time_budget"])))
        seeds = " or ".join(map(str, sorted(set(self.summary["seeds"]))))
        return f"{seconds} s of training, mean ± standard deviation over {seeds} seeds"

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """The verdicts on every pair of optimizers."""
        return compute_verdicts(self.runs, self.curves, TAIL)

    @cached_property
    def reach(self) -> pd.DataFrame:
        """What each optimizer needs to reach the plain optimizer's final loss."""
        return compute_reach(self.summary, self.curves, TAIL)

    @cached_property
    def falls(self) -> pd.DataFrame:
        """How the training loss of each setting's best plain optimizer fell."""
        return measure_fall(self.summary, self.curves, TAIL)

    @cached_property
    def equal_time(self) -> dict[str, list[dict[str, object]]]:
        """The rows of the tables against the libraries' own training, by library."""
        found = {}
        for backend, name in LIBRARIES.items():
            curves = self._store.read(f"equal_time-{backend}")
            if len(curves):
                found[name] = equal_time_tables.summarise(curves, goal_of=name)
        return found

    @cached_property
    def claims(self) -> Claims:
        """The verdicts on the paper's claims, and on expectations."""
        return Claims(
            self.summary, self.verdicts, self.variance, self.equal_time, self._missing
        )

    def write(self) -> None:
        """Write the appendices, the pictures, and the generated parts of the page."""
        for path, text in self.texts().items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        images = self._docs / "images"
        rows = self.reach[(self.reach["loss"] == "test") & self.reach["target"].notna()]
        figures.save_figure(figures.reach_figure(rows), images / "results-reach.png")
        setting, names = SHOWN
        own = self.curves[self.curves["setting"] == setting]
        own = own[own["optimizer"].isin(names)]
        if len(own):
            figure = figures.training_figure(own, "MSE")
            figures.save_figure(figure, images / "results-steps.png")

    def texts(self) -> dict[Path, str]:
        """Return the texts of all pages by path."""
        page = self._docs / "results.md"
        text = page.read_text(encoding="utf-8")
        blocks: dict[str, Callable[[], str]] = {
            "progress": self.progress,
            "regime": lambda: (
                f"{fall_sentence(self.falls)} {disturbed_sentence(self.runs)}"
            ),
            "answers": self.answers,
            "claims": self.claims.paragraphs,
            "expectations": self.claims.expectations,
            "scott": self.scott_table,
            "auto": self.auto_table,
            "step sizes": self.step_size_table,
            "control": self.control_table,
            "libraries": self.library_tables,
        }
        tables = self.variance_tables()
        blocks |= {name: tables[name].markdown for name in tables}
        for name, block in blocks.items():
            text = _fill(text, name, block())
        return {page: text, **self.appendices()}

    def appendices(self) -> dict[Path, str]:
        """Return the generated pages by path."""
        matrix = comparison_tables.verdict_matrix(self.verdicts, "equal training time")
        costs = [
            f"## {setting}\n\n{cost_table(cells).markdown()}"
            for setting, cells in self.summary.groupby("setting", sort=True)
        ]
        shares = [
            f"## {setting}\n\n{comparison_tables.reach_table(own, TAIL).markdown()}"
            for setting, own in self.reach.groupby("setting", sort=True)
        ]
        pages = {
            "counts": ("Every optimizer, counted", self.count_table().markdown()),
            "losses": (
                "Losses at equal time",
                f"Losses are means over the last {format_share(TAIL)} of a run.\n\n"
                f"{loss_table(self.summary).markdown()}",
            ),
            "verdicts": ("Verdicts by setting", matrix.markdown()),
            "reach": ("Costs of the plain optimizer's loss", "\n".join(shares)),
            "costs": ("Step sizes and costs", "\n".join(costs)),
            "backtest": ("Backtest", backtest_table(self.summary).markdown()),
            "regime": ("Were the runs long enough?", fall_table(self.falls).markdown()),
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
        stored = self.runs["setting"].nunique()
        text = f"{stored} settings, {len(self.runs):,} runs."
        if self._missing:
            names = ", ".join(f"`{name}`" for name in self._missing)
            text = (
                f"**{stored} of {stored + len(self._missing)} settings have been run**, "
                f"{len(self.runs):,} runs; missing: {names}."
            )
        return f"{text} {self._edges()}"

    def _edges(self) -> str:
        """Return how many tuned step sizes are at an edge of the grid."""
        sizes = self.summary["learning_rate"]
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
        rows = []
        for text, (challenger, baseline), loss in QUESTIONS:
            own = where(
                self.verdicts, challenger=challenger, baseline=baseline, loss=loss
            )
            if own.empty:
                continue
            counts = [count_verdicts(where(own, at=at)) for at in PER]
            rows.append(Row.of(text, answer(where(own, at="end")["verdict"]), *counts))
        compared = [loss for *_, loss in QUESTIONS].count("training")
        total = self.runs["setting"].nunique()
        caption = (
            "Number of settings in which the first was better / tied / worse (Welch's "
            f"test of the seeds, p < 0.05), of the {total} that have been run; the words "
            f"follow from the counts at equal time. The first {compared} rows compare "
            "training losses, the others test losses."
        )
        return Table(["", "Better?", *PER.values()], rows, caption, labels=2).markdown()

    def count_table(self) -> Table:
        """Return how often each optimizer was better, tied and worse."""
        return comparison_tables.count_table(
            self.summary, self.verdicts, self.reach, comparison_tables.EQUAL_TIME, TAIL
        )

    def scott_table(self) -> str:
        """Return SCott against SGD, per step, per gradient and per second."""
        rows = []
        for setting, cells in self._settings():
            row = [setting, *(self._loss(cells, n) for n in ("SGD", PAPER, LARGE))]
            for name in (PAPER, LARGE):
                found = [self._verdict(setting, name, "SGD", at) for at in PLACES]
                row.append(" / ".join(found))
            row.append(self._share(setting, LARGE))
            rows.append(Row.of(*row))
        header = ["Setting", "SGD", "SCott", LARGE]
        header += [f"{name}: {' / '.join(PLACES.values())}" for name in (PAPER, "large")]
        caption = (
            f"Training loss at the end of {self._budget}; what SCott was against SGD at "
            "equal steps, gradients and time "
            "(Welch's test of the seeds, p < 0.05); and the share of SGD's time in which "
            "SCott with large anchors reached SGD's final training loss."
        )
        return Table([*header, "time to SGD's loss"], rows, caption, labels=1).markdown()

    def auto_table(self) -> str:
        """Return `auto` against plain mini-batches at equal time."""
        pairs = (("auto SGD", "SGD"), ("auto Adam", "Adam"))
        rows = []
        for setting, cells in self._settings():
            row = [setting]
            for pair in pairs:
                row += [self._loss(cells, name, "test_loss") for name in reversed(pair)]
                found = [self._verdict(setting, *pair, "end", n) for n in LOSS_COLUMNS]
                row.append(" / ".join(found))
            row.append(self._share(setting, "auto Adam", "test"))
            rows.append(Row.of(*row))
        header = ["Setting"]
        for challenger, baseline in pairs:
            header += [baseline, challenger, "by training / test loss"]
        caption = (
            f"Test loss at the end of {self._budget}, what auto was against uniform "
            "mini-batches with the same update rule, by both losses, and the share of "
            "Adam's time in which auto with Adam reached Adam's final test loss."
        )
        return Table([*header, "time to Adam's loss"], rows, caption, labels=1).markdown()

    def step_size_table(self) -> str:
        """Return `auto` against plain with either's step size, where tuning chose two."""
        runs = self._store.read("controls")
        left = missing_controls(self.runs, runs)
        names = ", ".join(f"`{name}` ({', '.join(left[name])})" for name in left)
        text = f"Not run yet: {names}." if left else ""
        if runs.empty:
            return text
        settled = settled_losses(runs, self._store.read("control_curves"), TAIL)
        summary, keys = summarize_runs(settled), ["setting", "optimizer"]
        both = summary.merge(self.summary, on=keys, suffixes=("", "_above"))
        steps = both["steps"] / both["steps_above"]
        rows = [
            self._step_size_row(setting, rule, cells.set_index("optimizer"))
            for setting, cells in summary.groupby("setting", sort=True)
            for rule in SWAPPED
            if rule in set(cells["optimizer"])
        ]
        pair = ["step size", "plain", "auto", "auto is"]
        caption = (
            f"Test loss at the end of {self._budget}: with the step size that tuning "
            "chose for the plain optimizer, then with that for auto. In the same time "
            f"these runs made {format_share(steps.min())} to {format_share(steps.max())} "
            "of the steps of those above, as the machines differ: their losses compare "
            "within a row."
        )
        header = ["Setting", "Update rule", *pair, *pair]
        return f"{Table(header, rows, caption, labels=2).markdown()}\n{text}"

    def _step_size_row(self, setting: str, rule: str, cells: pd.DataFrame) -> Row:
        row, names = [setting, rule], list(SWAPPED[rule])
        for pair in (names[:2], names[2:]):
            losses = [self._loss(cells, name, "test_loss") for name in pair]
            plain, auto = (Sample.of(cells.loc[name], "test_loss") for name in pair)
            rate = f"{cells.loc[pair[0], 'learning_rate']:g}"
            row += [rate, *losses, Difference(auto, plain).verdict]
        return Row.of(*row)

    def control_table(self) -> str:
        """Return stratified steps at M = 1 against plain ones of as many windows."""
        stratified, control = "stratified Adam", "Adam, B windows"
        rows = []
        for setting, cells in self._settings():
            if control not in cells.index:
                continue
            windows = int(cells.loc[control, "windows_per_step"])
            names = ("Adam", control, stratified)
            losses = [self._loss(cells, name, "test_loss") for name in names]
            found = [
                self._verdict(setting, stratified, other, "end", "test")
                for other in ("Adam", control)
            ]
            rows.append(Row.of(setting, windows, *losses, *found))
        header = ["Setting", "B", "Adam, M = 1", "Adam, M = B", "stratified, M = B"]
        header += ["stratified against M = 1", "stratified against M = B"]
        return Table(header, rows, "Test loss at equal time.", labels=1).markdown()

    def library_tables(self) -> str:
        """Return the tables against the libraries' own training loops."""
        parts = [
            f"### {name}\n\n{equal_time_tables.render(rows)}"
            for name, rows in self.equal_time.items()
        ]
        fits = self._store.read("equal_time-autogluon")
        if len(fits):
            table = markdown(summarise_fits(fits), AUTOGLUON_COLUMNS)
            parts.append(f"### AutoGluon\n\n{table}")
        return "\n\n".join(parts) or "Not measured yet."

    def variance_tables(self) -> dict[str, Table]:
        """Return what was measured of the variance of samplers, by block of the page."""
        if self.variance.empty:
            return {}
        first = self.runs.drop_duplicates("setting").set_index("setting")
        return {
            "variance": sampler_table(self.variance),
            "why": control_variate_table(self.variance, first["batch_size"]),
        }

    def _settings(self) -> Iterable[tuple[str, pd.DataFrame]]:
        order = ["batch_size", "model", "dataset"]
        for _, cells in self.summary.groupby(order, sort=True):
            yield str(cells["setting"].iloc[0]), cells.set_index("optimizer")

    @staticmethod
    def _loss(cells: pd.DataFrame, name: str, column: str = "train_loss") -> str:
        row = cells.loc[name]
        text = format_mean(row[f"{column}_mean"], row[f"{column}_std"])
        return f"{text} ({row['outcome']})" if row["outcome"] else text

    def _verdict(
        self, setting: str, name: str, against: str, at: str, loss: str = "training"
    ) -> str:
        rows = where(
            self.verdicts,
            **{"setting": setting, "challenger": name, "baseline": against},
            **{"at": at, "loss": loss},
        )
        return str(rows["verdict"].item())

    def _share(self, setting: str, name: str, loss: str = "training") -> str:
        rows = where(self.reach, setting=setting, optimizer=name, loss=loss)
        if rows["target"].isna().any():
            return DASH
        share = median_share(rows["seconds_share"])
        return NOT_REACHED if math.isinf(share) else format_share(share)


def _fill(text: str, name: str, block: str) -> str:
    """Return a page with the content between the marks of a block replaced."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise SystemExit(f"docs/results.md has no single block {name!r}.")
    return pattern.sub(lambda _: f"{begin}\n\n{block.strip()}\n\n{end}", text)
