"""The documentation site: its navigation, its API reference, and its figures."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from docstring_parser import DocstringStyle, parse

import pts_scott

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
REPOSITORY = "https://github.com/pts-scott/pts-scott"


class SiteLoader(yaml.SafeLoader):
    """A reader of mkdocs.yml, in which Python objects are left out."""


SiteLoader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
SITE = yaml.load((ROOT / "mkdocs.yml").read_text(), SiteLoader)


def load_hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hooks", DOCS / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOOKS = load_hooks()


def nav_pages(part: Any) -> list[str]:
    if isinstance(part, str):
        return [part]
    parts = part.values() if isinstance(part, dict) else part
    return [page for inner in parts for page in nav_pages(inner)]


def test_navigation_lists_every_page_once():
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert sorted(nav_pages(SITE["nav"])) == sorted([*pages, *HOOKS.TOP_LEVEL])


@pytest.mark.parametrize(
    ("link", "source", "page", "expected"),
    [
        ("speed.md", "docs/models.md", "models.md", "speed.md"),
        ("images/a.png", "docs/models.md", "models.md", "images/a.png"),
        ("../data.md", "docs/reference/data.md", "reference/data.md", "../data.md"),
        ("../README.md", "docs/data.md", "data.md", f"{REPOSITORY}/blob/main/README.md"),
        ("../configs", "docs/paper.md", "paper.md", f"{REPOSITORY}/tree/main/configs"),
        ("../ARCHITECTURE.md", "docs/data.md", "data.md", "architecture.md"),
        ("docs/data.md", "CHANGELOG.md", "changelog.md", "data.md"),
        ("ARCHITECTURE.md", "CHANGELOG.md", "changelog.md", "architecture.md"),
    ],
)
def test_links_lead_to_pages_or_to_the_repository(link, source, page, expected):
    assert HOOKS.site_link(link, ROOT / source, page, REPOSITORY) == expected


def test_links_lead_to_the_repository_of_the_package():
    assert SITE["repo_url"] == REPOSITORY
    assert f'Repository = "{REPOSITORY}"' in (ROOT / "pyproject.toml").read_text()


# -- the API reference ----------------------------------------------------------------


def shown_names() -> list[str]:
    """Return the dotted names of all objects and members that the reference shows."""
    names = []
    for page in sorted((DOCS / "reference").glob("*.md")):
        for name, options in re.findall(
            r"^::: (\S+)\n((?: +.*\n?)*)", page.read_text(), re.M
        ):
            members = (yaml.safe_load(options) or {}).get("options", {}).get("members")
            listed = members if isinstance(members, list) else []
            names += [name, *(f"{name}.{member}" for member in listed)]
    return names


SHOWN = [name for name in shown_names() if "integrations" not in name]


@cache
def resolve(name: str) -> Any:
    """Return the object of a dotted name."""
    parts = name.split(".")
    found: Any = pts_scott
    for number, part in enumerate(parts[1:], start=2):
        if isinstance(found, ModuleType) and not hasattr(found, part):
            found = importlib.import_module(".".join(parts[:number]))
        else:
            found = inspect.getattr_static(found, part, None) or getattr(found, part)
    return found


def test_every_public_name_is_in_the_reference():
    of_errors = {"ScottError", "ScottWarning", "FaultWarning"}  # a page of their module
    shown = {name.removeprefix("pts_scott.") for name in SHOWN}
    assert "errors" in shown
    assert set(pts_scott.__all__) - of_errors - shown == set()


def test_public_names_are_imported_lazily_and_listed_once():
    assert sorted(pts_scott.__all__) == sorted(pts_scott._MODULES)
    for name in pts_scott.__all__:
        assert getattr(pts_scott, name).__name__ == name


def arguments_of(function: Any) -> set[str]:
    if isinstance(function, property) or not callable(function):
        return set()
    return {*inspect.signature(function).parameters} - {"self", "cls"}


def unwrapped(found: Any) -> Any:
    return getattr(found, "__func__", found)


@pytest.mark.parametrize("name", SHOWN)
def test_docstrings_are_complete(name):
    found = unwrapped(resolve(name))
    documented = parse(inspect.getdoc(found) or "", DocstringStyle.NUMPYDOC)
    assert documented.short_description
    listed = {
        name.strip(" *")
        for parameter in documented.params
        if parameter.args[0] == "param"
        for name in parameter.arg_name.split(",")
    }
    if isinstance(found, ModuleType) or inspect.isabstract(found):
        return
    assert arguments_of(found) - listed == set()
    assert listed - arguments_of(found) == set()


@pytest.mark.parametrize("name", SHOWN)
def test_examples_of_docstrings_work(name):
    found = unwrapped(resolve(name))
    if isinstance(found, ModuleType):
        return
    module = importlib.import_module(getattr(found, "__module__", "pts_scott"))
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in doctest.DocTestFinder(recurse=False).find(
        found, name, module=module, globs={**vars(module)}
    ):
        assert runner.run(test).failed == 0


# -- figures --------------------------------------------------------------------------


def numbers_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w.,-])\d+(?:[.,]\d+)*(?!\w)", text))


def rows_of(page: str) -> list[str]:
    return re.findall(r"^\| .+ \|$", (DOCS / page).read_text(), flags=re.M)


@pytest.mark.parametrize("row", rows_of("settings.md"), ids=lambda row: row[2:40])
def test_figures_of_settings_stand_on_the_linked_page(row):
    pages = re.findall(r"\]\((\w[\w-]*\.md)", row)
    quoted = numbers_in(re.sub(r"`[^`]+`|\]\([^)]*\)", "", row))
    linked = "\n".join((DOCS / page).read_text() for page in pages)
    assert quoted - numbers_in(linked) == set()
