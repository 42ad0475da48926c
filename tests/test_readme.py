"""The examples of all pages run, and links in the documentation lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.examples import examples, run_examples

from pts_scott.method.methods import METHODS

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
FOLDERS = (".", "docs", "docs/reference", "configs", "notebooks")
PAGES = [page for folder in FOLDERS for page in sorted(ROOT.glob(f"{folder}/*.md"))]


@pytest.mark.slow
def test_the_examples_work(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_examples(README)
    assert len(examples(README)) == 5
    assert names["metrics"]["MASE"] < 1.5
    printed = capsys.readouterr().out
    assert "From step 0" in printed  # the trainer's report
    assert "timestamp" in printed  # forecasts as a frame
    assert "noise scale" in printed  # the diagnosis


WITH_EXAMPLES = [page for page in PAGES if page != README and examples(page)]


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_examples_of_pages_work(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_examples(page)


def test_only_marked_examples_are_not_run(tmp_path):
    page = tmp_path / "page.md"
    marked = "<!-- not run: needs data -->\n\n```python\na = 1\n```\n"
    page.write_text(f"{marked}\nText.\n\n```python\nb = 2\n```\n")
    assert examples(page) == ["b = 2\n"]
    page.write_text(marked.replace(": needs data", ":"))  # without a reason
    assert examples(page) == ["a = 1\n"]


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


def test_the_readme_is_short_and_links_to_other_pages():
    text = README.read_text()
    assert len(text.splitlines()) < 200
    assert re.findall(r"\]\((docs/[^)]+)\)", text)


def test_the_page_of_methods_lists_each_once():
    page = (ROOT / "docs" / "methods.md").read_text()
    assert sorted(re.findall(r'^\| `"(\w+)"` \|', page, flags=re.M)) == sorted(METHODS)
