"""The contract that the models of both backends are tested for."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pts_scott._utils.rng import isolated_rng

#: Columns of the tables in docs/models.md, each tested for every model.
COLUMNS = ("trains", "loss falls", "predicts", "serialises", "backtests")


def full_contract(names: Iterable[str]) -> dict[str, dict[str, bool]]:
    """Return the table in which every model meets every column."""
    return {name: dict.fromkeys(COLUMNS, True) for name in names}


def assert_same_parameters(one: torch.nn.Module, other: torch.nn.Module) -> None:
    """Compare the parameters of two networks bit by bit."""
    for x, y in zip(one.parameters(), other.parameters()):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


def forecast_with_seed(predictor: Any, entries: list[Any]) -> np.ndarray:
    """Return the median forecast of the first series, from few sample paths."""
    with isolated_rng(0, torch.device("cpu")):
        return next(iter(predictor.predict(entries, num_samples=20))).quantile(0.5)


def assert_forecasts_equal_in_fresh_process(
    predictors: dict[str, Any], data: dict[str, list[Any]], folder: Path
) -> None:
    """Serialise predictors, and compare their forecasts in a new process."""
    expected = {}
    for name, predictor in predictors.items():
        (folder / name).mkdir()
        predictor.serialize(folder / name)
        expected[name] = forecast_with_seed(predictor, data[name])
    (folder / "data.pickle").write_bytes(pickle.dumps((data, expected)))
    script = f"""
        import pickle, warnings
        from pathlib import Path
        warnings.simplefilter("ignore")
        import numpy as np
        from pts_scott import load_predictor
        folder = Path({str(folder)!r})
        from helpers.library_contract import forecast_with_seed
        data, expected = pickle.loads((folder / "data.pickle").read_bytes())
        for name, median in expected.items():
            found = forecast_with_seed(load_predictor(folder / name), data[name])
            np.testing.assert_allclose(found, median, rtol=1e-5, err_msg=name)
            print(name)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.splitlines() == list(predictors), done.stderr[-2000:]


def documented(backend: str) -> dict[str, dict[str, bool]]:
    """Return a backend's table in docs/models.md: which model meets which column."""
    text = (Path(__file__).parents[2] / "docs/models.md").read_text()
    lines = text.split(f"## {backend}\n")[1].split("\n## ")[0].splitlines()
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in lines if "|" in line]
    header, _, *rows = cells
    columns = header[1:6]
    return {
        name: {column: cell == "yes" for column, cell in zip(columns, row, strict=False)}
        for name, *row in rows
    }
