"""The README's examples run, and links in the documentation lead somewhere."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from pts_scott.method.methods import METHODS

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
FOLDERS = (".", "docs", "configs", "notebooks")
PAGES = [page for folder in FOLDERS for page in sorted(ROOT.glob(f"{folder}/*.md"))]


@pytest.mark.slow
def test_the_examples_work(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)
    for block in blocks:
        for_pytorchts = "from pts." in block
        for_gluonts = "from gluonts.torch.model" in block
        needs_backend = for_pytorchts or for_gluonts
        if needs_backend and for_pytorchts == (find_spec("pts") is None):
            continue
        exec(compile(block, str(README), "exec"), names)
        if names.get("metrics") and "MASE" not in names:
            names["MASE"] = names["metrics"]["MASE"]
    assert len(blocks) == 12
    assert names["MASE"] < 1.5
    assert names["forecast"].mean.shape == (24,)
    printed = capsys.readouterr().out
    assert "train_loss" in printed
    assert "Mon, 2024Q1" in printed


@pytest.mark.slow
@pytest.mark.parametrize("page", ["data", "sampling"])
def test_the_examples_of_pages_work(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    text = (ROOT / "docs" / f"{page}.md").read_text()
    if page == "sampling":  # the rest of the page are fragments
        text = text.partition("## In your own training loop")[2]
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    assert blocks
    for block in blocks:
        if "from gluonts.torch.model" not in block or find_spec("pts") is None:
            exec(compile(block, page, "exec"), names)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.M)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in kept}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pictures_linked_files_and_headings_exist(page):
    missing = []
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text()):
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (heading and heading not in anchors(target)):
            missing.append(link)
    assert missing == []


def test_the_readme_links_to_other_pages():
    assert re.findall(r"\]\((docs/[^)]+)\)", README.read_text())


def test_the_page_of_methods_lists_each_once():
    page = (ROOT / "docs" / "methods.md").read_text()
    assert sorted(re.findall(r'^\| `"(\w+)"` \|', page, flags=re.M)) == sorted(METHODS)
