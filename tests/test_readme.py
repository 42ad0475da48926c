"""The README's example runs as it stands."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:an anchor of 14 strata:UserWarning")
def test_the_examples_work(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)
    for block in blocks:
        of_pts = "from pts." in block
        of_gluonts = "from gluonts.torch.model" in block
        if (of_pts or of_gluonts) and of_pts == (find_spec("pts") is None):
            continue
        exec(compile(block, str(README), "exec"), names)
        if names.get("metrics") and "MASE" not in names:
            names["MASE"] = names["metrics"]["MASE"]
    assert len(blocks) == 10
    assert names["MASE"] < 1.5
    assert names["forecast"].mean.shape == (24,)
    printed = capsys.readouterr().out
    assert "train_loss" in printed
    assert "Mon, 2024Q1" in printed


def test_pictures_and_linked_files_exist():
    links = re.findall(r"\]\((?!https?:|#)([^)]+)\)", README.read_text())
    assert links
    assert [link for link in links if not (README.parent / link).exists()] == []
