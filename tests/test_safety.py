"""The package contains no code that would execute what a file holds.

Hostile files are tested with the module that reads them: datasets/test_hostile_files.py,
data/test_hostile_arrow.py, strata/test_hostile_policy_text.py, and the tests of
checkpoints, predictors, configs and results.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pts_scott

SOURCES = sorted(Path(pts_scott.__file__).parent.rglob("*.py"))
MODULES = {"cloudpickle", "dill", "joblib", "marshal", "shelve", "subprocess"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
CALLS = {
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "pd.read_pickle", "os.system"),
    *("yaml.load", "yaml.full_load", "yaml.unsafe_load", "yaml.load_all"),
    *("locate", "pydoc.locate", "os.popen"),
    *("torch.jit.load", "torch.hub.load", "torch.package.PackageImporter"),
}
SAFE_WITH = {"torch.load": ("weights_only", True), "np.load": ("allow_pickle", False)}
# The package imports its public names on first use; a predictor's file names a class,
# which is checked against an allowlist before it is imported.
ALLOWED = {"__init__.py: import_module", "predictors.py: locate"}


def dangerous_code(path: Path) -> Iterator[str]:
    """Yield what in a source file could execute the contents of another file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            roots = names if isinstance(node, ast.Import) else [node.module or ""]
            yield from (r for r in roots if r.split(".")[0] in MODULES)
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        given = {k.arg: k.value for k in node.keywords}
        if name in BUILTINS | CALLS or name.split(".")[-1] == "import_module":
            yield name
        if name in SAFE_WITH:
            argument, value = SAFE_WITH[name]
            if getattr(given.get(argument), "value", None) is not value:
                yield f"{name} without {argument}={value}"


def test_package_does_not_execute_the_contents_of_files():
    found = {f"{path.name}: {code}" for path in SOURCES for code in dangerous_code(path)}
    assert found == ALLOWED


@pytest.mark.parametrize(
    "code",
    [
        *("eval('1')", "exec(text)", "pickle.loads(b)", "import joblib", "yaml.load(f)"),
        *("torch.load(f)", "torch.load(f, weights_only=False)", "np.load(f)"),
        *("np.load(f, allow_pickle=True)", "from dill import loads", "pd.read_pickle(f)"),
        "importlib.import_module(name)",
    ],
)
def test_scan_finds_dangerous_code(code, tmp_path):
    (tmp_path / "code.py").write_text(code)
    assert list(dangerous_code(tmp_path / "code.py"))
