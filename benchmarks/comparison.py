"""The comparison of docs/results.md: store its results, and write its pages.

    python benchmarks/comparison.py missing           # configs that are still to be run
    python benchmarks/comparison.py collect FOLDER …  # store what was tuned and run
    python benchmarks/comparison.py page              # write tables and pictures anew

`collect` takes folders of `pts-scott bench` and that of `pts-scott tune`, adds their
settings to the files in ``docs/results``, and leaves out settings with a run that is
missing or failed. Settings may come from different machines, the runs of one may not:
nothing is compared across settings. `page` computes every number from those files.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path

import pandas as pd

from pts_scott.experiments.config_files import load_experiment
from pts_scott.experiments.report import comparison_tables, figures
from pts_scott.experiments.report.formatting import format_mean, format_share
from pts_scott.experiments.report.page import cost_table
from pts_scott.experiments.report.reach import compute_reach, median_share
from pts_scott.experiments.report.summary import summarize_runs
from pts_scott.experiments.report.tables import Row, Table, backtest_table, loss_table
from pts_scott.experiments.report.verdicts import compute_verdicts
from pts_scott.experiments.report.welch import UNDECIDED, VERDICTS
from pts_scott.experiments.results import (
    TEXT_KEYS,
    SettingFolder,
    read_curves,
    read_runs,
    read_variance,
)

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
STORE = DOCS / "results"
IMAGES = DOCS / "images"
#: Files of the store, and the digits of their numbers.
TABLES = {"runs": 8, "curves": 6, "variance": 5, "trials": 6}
LARGE, PAPER = "SCott, large anchors", "SCott"
PLACES = {"steps": "steps", "gradients": "gradients", "end": "time"}

ALL_PLACES = {"steps": "per step", "gradients": "per gradient", "end": "at equal time"}
AT_THE_END = {"end": "at equal time"}
#: What is asked, the pair that answers it, by which loss, and where it is compared.
QUESTIONS = (
    ("SCott with large anchors against SGD,", (LARGE, "SGD"), "training", ALL_PLACES),
    ("SCott as in the paper against SGD,", (PAPER, "SGD"), "training", ALL_PLACES),
    ("SCott against SCSG,", (PAPER, "SCSG"), "training", ALL_PLACES),
    ("S-Adam against Adam,", ("S-Adam", "Adam"), "training", ALL_PLACES),
    ("S-Adagrad against Adagrad,", ("S-Adagrad", "Adagrad"), "training", ALL_PLACES),
    ("`auto` against SGD, by test loss,", ("auto SGD", "SGD"), "test", AT_THE_END),
    ("`auto` against Adam, by test loss,", ("auto Adam", "Adam"), "test", AT_THE_END),
    (
        "Learned strata with spread allocation against Adam, by test loss,",
        *(("learned strata, spread, Adam", "Adam"), "test", AT_THE_END),
    ),
    (
        "Stratified steps of B windows against plain ones of B windows, by test loss,",
        *(("stratified Adam", "Adam, B windows"), "test", AT_THE_END),
    ),
)


# -- the store --------------------------------------------------------------------------


def read_table(name: str) -> pd.DataFrame:
    """Return a table of the store; empty if nothing is stored yet."""
    path = STORE / f"{name}.csv.gz"
    if not path.exists():
        return pd.DataFrame({"setting": []})
    table = pd.read_csv(path)
    text = [column for column in (*TEXT_KEYS, "warnings", "note") if column in table]
    return table.fillna(dict.fromkeys(text, ""))


def missing() -> list[Path]:
    """Return the configs of the comparison whose results are not stored.

    A setting that has been tuned is given by its tuned config, the others by their own.
    """
    stored, left = set(read_table("runs")["setting"]), []
    for path in sorted((ROOT / "configs" / "comparison").glob("*.yaml")):
        setting = load_experiment(path).setting
        tuned = STORE / "configs" / f"{setting}.yaml"
        if setting not in stored:
            left.append(tuned if tuned.exists() else path)
    return left


def collect(benchmarks: Iterable[Path], tuned: Path) -> list[str]:
    """Add tuned settings and complete benchmarks to the store; return what was added.

    Parameters
    ----------
    benchmarks
        Folders of `pts-scott bench`.
    tuned
        Folder of `pts-scott tune`.
    """
    found: dict[str, list[pd.DataFrame]] = {name: [] for name in TABLES}
    added = []
    (STORE / "configs").mkdir(parents=True, exist_ok=True)
    for best in sorted(tuned.glob("**/best.yaml")):
        name = best.parent.name
        (STORE / "configs" / f"{name}.yaml").write_bytes(best.read_bytes())
        trials = pd.read_csv(best.with_name("trials.csv"))
        found["trials"].append(trials.assign(setting=name))
        added.append(f"{name}: tuned")
    for folder in benchmarks:
        runs = read_runs(folder)
        curves = read_curves(folder, runs)
        for setting in SettingFolder.read_all(folder, runs):
            name, variance = setting.name, read_variance(setting.folder)
            own = runs[runs["setting"] == name]
            if setting.missing or (own["status"] == "failed").any() or variance is None:
                print(f"{name} is not complete, and left out", file=sys.stderr)
                continue
            found["runs"].append(own.drop(columns="folder"))
            found["curves"].append(curves[curves["setting"] == name])
            found["variance"].append(variance.assign(setting=name))
            added.append(f"{name}: {len(own)} runs")
    for name, digits in TABLES.items():
        _add(name, found[name], digits)
    return added


def _add(name: str, tables: Sequence[pd.DataFrame], digits: int) -> None:
    """Add settings to a table of the store, in place of older results."""
    if not tables:
        return
    new = pd.concat(tables, ignore_index=True)
    before = read_table(name)
    before = before[~before["setting"].isin(set(new["setting"]))]
    table = pd.concat([before, new], ignore_index=True)
    table.sort_values("setting", kind="stable").to_csv(
        STORE / f"{name}.csv.gz",
        index=False,
        float_format=f"%.{digits}g",
        compression={"method": "gzip", "mtime": 0},  # equal content, equal file
    )


# -- the pages --------------------------------------------------------------------------


class Pages:
    """Everything that the pages show, computed from the store."""

    def __init__(self) -> None:
        self.runs, self.curves = read_table("runs"), read_table("curves")
        self.variance = read_table("variance")
        self.summary = summarize_runs(self.runs)

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """The verdicts on every pair of optimizers."""
        return compute_verdicts(self.runs, self.curves)

    @cached_property
    def reach(self) -> pd.DataFrame:
        """What each optimizer needs to reach the plain optimizer's final loss."""
        return compute_reach(self.summary, self.curves)

    def write(self) -> None:
        """Write the appendices, the pictures, and the generated parts of the page."""
        for path, text in self.texts().items():
            path.write_text(text, encoding="utf-8")
        rows = self.reach[(self.reach["loss"] == "test") & self.reach["target"].notna()]
        figures.save_figure(figures.reach_figure(rows), IMAGES / "results-reach.png")
        for setting in ("var-synthetic-M1",):
            own = self.curves[self.curves["setting"] == setting]
            names = ("SGD", PAPER, LARGE, "SCSG", "auto SGD")
            own = own[own["optimizer"].isin(names)]
            figure = figures.training_figure(own, "MSE")
            figures.save_figure(figure, IMAGES / "results-steps.png")

    def texts(self) -> dict[Path, str]:
        """Return the texts of all pages by path."""
        page = DOCS / "results.md"
        text = page.read_text(encoding="utf-8")
        blocks: dict[str, Callable[[], str]] = {
            "progress": self.progress,
            "answers": self.answers,
            "scott": self.scott_table,
            "counts": lambda: self.count_table().markdown(),
            "auto": self.auto_table,
            "control": self.control_table,
            "variance": self.variance_table,
        }
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
            f"## {setting}\n\n{comparison_tables.reach_table(own).markdown()}"
            for setting, own in self.reach.groupby("setting", sort=True)
        ]
        pages = {
            "losses": ("Losses at equal time", loss_table(self.summary).markdown()),
            "verdicts": ("Verdicts by setting", matrix.markdown()),
            "reach": ("Costs of the plain optimizer's loss", "\n".join(shares)),
            "costs": ("Step sizes and costs", "\n".join(costs)),
            "backtest": ("Backtest", backtest_table(self.summary).markdown()),
        }
        note = (
            "Written by `python benchmarks/comparison.py page` from the files beside it."
        )
        return {
            STORE / f"{name}.md": f"# {title}\n\n{note}\n\n{text.rstrip()}\n"
            for name, (title, text) in pages.items()
        }

    def progress(self) -> str:
        """Return how much of the comparison has been run."""
        stored, left = self.runs["setting"].nunique(), missing()
        text = f"{stored} settings, {len(self.runs):,} runs."
        if left:
            names = ", ".join(f"`{path.stem}`" for path in left)
            text = (
                f"**{stored} of {stored + len(left)} settings have been run**, "
                f"{len(self.runs):,} runs; missing: {names}."
            )
        return text

    def answers(self) -> str:
        """Return the counts of the most important comparisons, as a list."""
        lines = []
        for text, pair, loss, places in QUESTIONS:
            rows = self.verdicts
            for key, value in zip(("challenger", "baseline", "loss"), (*pair, loss)):
                rows = rows[rows[key] == value]
            parts = []
            for size in sorted(set(self.runs["batch_size"])):
                named = set(self.runs.loc[self.runs["batch_size"] == size, "setting"])
                own = rows[rows["setting"].isin(named)]
                counts = [
                    f"{_count(own[own['at'] == at])} {where}"
                    for at, where in places.items()
                    if len(own)
                ]
                if counts:
                    settings = own["setting"].nunique()
                    parts.append(f"M = {size}, {settings} settings: {', '.join(counts)}")
            if parts:
                lines.append(f"- **{text}** {'; '.join(parts)}.")
        head = "Number of settings in which the first was better / tied / worse:"
        return "\n".join([head, "", *lines])

    def count_table(self) -> Table:
        """Return how often each optimizer was better, tied and worse."""
        return comparison_tables.count_table(
            self.summary, self.verdicts, self.reach, comparison_tables.EQUAL_TIME
        )

    def scott_table(self) -> str:
        """Return SCott against SGD, per step, per gradient and per second."""
        rows = []
        for setting, cells in self._settings():
            row = [setting, *(self._loss(cells, n) for n in ("SGD", PAPER, LARGE))]
            for name in (PAPER, LARGE):
                row += [self._verdict(setting, name, "SGD", at) for at in PLACES]
            row.append(self._share(setting, LARGE))
            rows.append(Row.of(*row))
        header = ["Setting", "SGD", "SCott", LARGE]
        header += [f"{n}: per {p}" for n in (PAPER, "large") for p in PLACES.values()]
        caption = (
            "Training loss after 15 s of training, mean ± standard deviation over five "
            "seeds; what SCott was against SGD at equal steps, gradients and time "
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
                row.append(self._verdict(setting, *pair, "end", "training"))
                row.append(self._verdict(setting, *pair, "end", "test"))
            row.append(self._share(setting, "auto Adam", "test"))
            rows.append(Row.of(*row))
        header = ["Setting"]
        for challenger, baseline in pairs:
            header += [baseline, challenger, "by training loss", "by test loss"]
        caption = (
            "Test loss after 15 s of training, what auto was against uniform "
            "mini-batches with the same update rule, by both losses, and the share of "
            "Adam's time in which auto with Adam reached Adam's final test loss."
        )
        return Table([*header, "time to Adam's loss"], rows, caption, labels=1).markdown()

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

    def variance_table(self) -> str:
        """Return the variance of samplers at the end of a run, relative to uniform."""
        if self.variance.empty:
            return ""
        last = self.variance[self.variance["step"] > 0]
        last = last[last["step"] == last.groupby("setting")["step"].transform("max")]
        last = last.assign(
            label=[
                figures.SAMPLER_NAMES.get(name, name) for name in last["sampler"].tolist()
            ]
        )
        table = last.pivot_table(
            index="setting", columns="label", values="relative", sort=False
        )
        rows = [
            Row.of(name, *(f"{v:.2f}" if pd.notna(v) else "–" for v in values))
            for name, *values in table.itertuples()
        ]
        return Table(["Setting", *table.columns], rows, labels=1).markdown()

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
        rows = self.verdicts
        keys = {
            **{"setting": setting, "challenger": name, "baseline": against},
            **{"at": at, "loss": loss},
        }
        for key, value in keys.items():
            rows = rows[rows[key] == value]
        return str(rows["verdict"].item())

    def _share(self, setting: str, name: str, loss: str = "training") -> str:
        rows = self.reach
        for key, value in {"setting": setting, "optimizer": name, "loss": loss}.items():
            rows = rows[rows[key] == value]
        share = median_share(rows["seconds_share"])
        return "not reached" if share == float("inf") else format_share(share)


def _count(rows: pd.DataFrame) -> str:
    """Return how often a verdict was better / tied / worse."""
    count = rows["verdict"].value_counts()
    text = " / ".join(str(count.get(verdict, 0)) for verdict in VERDICTS)
    return text + (f" ({count[UNDECIDED]} undecided)" if UNDECIDED in count else "")


def _fill(text: str, name: str, block: str) -> str:
    """Return a page with the content between the marks of a block replaced."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise SystemExit(f"docs/results.md has no single block {name!r}.")
    return pattern.sub(lambda _: f"{begin}\n\n{block.strip()}\n\n{end}", text)


def main(arguments: list[str] | None = None) -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("missing", help="list the configs that are still to be run")
    collecting = commands.add_parser("collect", help="store the results of a benchmark")
    collecting.add_argument("benchmarks", nargs="*", type=Path)
    collecting.add_argument("--tuned", type=Path, default=Path("results/tune"))
    commands.add_parser("page", help="write the pages and pictures")
    options = parser.parse_args(arguments)
    if options.command == "missing":
        print("\n".join(map(str, missing())))
    elif options.command == "collect":
        print("\n".join(collect(options.benchmarks, options.tuned)))
    else:
        Pages().write()


if __name__ == "__main__":
    main()
