"""The README's example runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.slow
def test_the_first_example_works(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)[0]
    names: dict = {}
    exec(compile(code, str(README), "exec"), names)
    assert names["metrics"]["MASE"] < 1.5
    assert len(names["trainer"].strata) == 24
    assert "train_loss" in capsys.readouterr().out


def test_pictures_and_linked_files_exist():
    links = re.findall(r"\]\((?!https?:|#)([^)]+)\)", README.read_text())
    assert links
    assert [link for link in links if not (README.parent / link).exists()] == []
