"""Rules for the source tree that the import-linter contract cannot express."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pts_scott"
TESTS = ROOT / "tests"
MODULES = sorted(PACKAGE.rglob("*.py"))
LONGEST_MODULE = 400  # lines


def imported_names(source: str) -> Iterator[str]:
    """Yield the dotted name of everything that the source imports, lazily or not."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = "." * node.level + (node.module or "")
            yield from (f"{parent}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in {"import_module", "__import__", "importorskip"}:
                yield from (a.value for a in node.args[:1] if isinstance(a, ast.Constant))


def belongs_to(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")


def path_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import gluonts.torch.util", ["gluonts.torch.util"]),
        ("from gluonts import torch", ["gluonts.torch"]),
        ("from .sibling import name", [".sibling.name"]),
        ("def f():\n    from pts import Trainer", ["pts.Trainer"]),
        ("importlib.import_module('pts')", ["pts"]),
        ("import_module(name)", []),
        ("print('gluonts.torch')", []),
    ],
)
def test_imports_are_found_in_source(source, names):
    assert list(imported_names(source)) == names


def test_only_backends_import_gluonts_torch_or_pts():
    found = [
        f"{path_id(path)}: {name}"
        for path in MODULES
        if PACKAGE / "backends" not in path.parents
        for name in imported_names(path.read_text())
        if belongs_to(name, "gluonts.torch") or belongs_to(name, "pts")
    ]
    assert found == []


def test_no_test_module_imports_another_test_module():
    found = [
        f"{path_id(path)}: {name}"
        for path in sorted(TESTS.rglob("*.py"))
        for name in imported_names(path.read_text())
        if re.search(r"(^|\.)(test_\w+|tests|conftest)(\.|$)", name)
    ]
    assert found == []


def test_no_module_is_too_long():
    lengths = {path_id(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {p: n for p, n in lengths.items() if n > LONGEST_MODULE} == {}


def test_pre_commit_uses_the_pinned_ruff():
    constraints = (ROOT / "constraints/gluonts.txt").read_text()
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    pinned = re.search(r"^ruff==(\S+)$", constraints, flags=re.M)
    hooked = re.search(r"ruff-pre-commit\n\s+rev: v(\S+)$", hooks, flags=re.M)
    assert pinned
    assert hooked
    assert hooked[1] == pinned[1]
