"""The notebooks run from top to bottom, and are stored with the outputs of their run.

The metadata of a notebook configures its test:
``{"pts_scott": {"needs": "exchange_rate", "small": {"SECONDS": 1}}}``. It is skipped if
the dataset ``needs`` is not available, and ``small`` overrides variables that its cell
tagged "parameters" assigns.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

import pts_scott
from pts_scott.datasets.catalogue import available
from pts_scott.datasets.known import FOLDER_VARIABLE as FOLDER

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MAX_BYTES = 700_000

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_notebooks_exist():
    expected = {"quickstart", "stratification", "reproduce_paper"}
    assert expected <= {path.stem for path in NOTEBOOKS}


@each_notebook
def test_notebook_is_stored_with_the_outputs_of_one_run(path):
    notebook = read(path)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert [o for o in outputs if o.output_type == "error"] == []
    assert [o.text for o in outputs if o.get("name") == "stderr"] == []
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert path.stat().st_size < MAX_BYTES


@each_notebook
def test_outputs_contain_no_local_paths(path):
    texts = [
        text
        for cell in code_cells(read(path))
        for output in cell.outputs
        for text in [output.get("text", ""), output.get("data", {}).get("text/plain", "")]
    ]
    paths = re.compile(r"(?<![\w.])/(?:root|home|Users|tmp|work|opt|usr|var)/|[A-Z]:\\")
    assert [text for text in texts if paths.search(text)] == []


@each_notebook
def test_links_point_to_existing_files(path):
    texts = [cell.source for cell in read(path).cells if cell.cell_type == "markdown"]
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", "\n".join(texts))
    assert [link for link in links if not (path.parent / link).exists()] == []


@each_notebook
def test_only_public_names_are_imported(path):
    # Lines such as "%matplotlib inline" are not Python.
    lines = "\n".join(cell.source for cell in code_cells(read(path))).splitlines()
    code = "\n".join(line for line in lines if not line.startswith(("%", "!")))
    assert private_imports(code) == []


def test_private_imports_are_found():
    code = "from pts_scott import load, Secret\nfrom pts_scott.strata import policy"
    assert private_imports(code) == ["pts_scott.Secret", "pts_scott.strata"]
    assert private_imports("import pts_scott.engine") == ["pts_scott.engine"]
    assert private_imports("import numpy\nfrom gluonts.time_feature import x") == []


@pytest.mark.slow
@each_notebook
def test_notebook_runs(path, tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    notebook = read(path)
    settings = notebook.metadata.get("pts_scott", {})
    skip_without_data(settings.get("needs"))
    make_small(notebook, settings.get("small", {}))
    clear(notebook)
    use_this_interpreter(tmp_path / "jupyter", monkeypatch)

    client = nbclient.NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(working_folder(tmp_path))}},
    )
    client.execute()  # raises CellExecutionError, with the traceback

    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))


def test_small_value_for_an_unknown_parameter_raises():
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell("SECONDS = 9", metadata={"tags": ["parameters"]})
        ]
    )
    make_small(notebook, {"SECONDS": 1})
    names: dict = {}
    exec(notebook.cells[0].source, names)
    assert names["SECONDS"] == 1
    with pytest.raises(AssertionError, match="MINUTES"):
        make_small(notebook, {"MINUTES": 1})


# -- helpers ----------------------------------------------------------------------------


def read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def private_imports(code: str) -> list[str]:
    """Return what code imports of pts_scott that is not one of its public names."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.startswith("pts_scott.")]
        elif isinstance(node, ast.ImportFrom) and node.module == "pts_scott":
            names = [a.name for a in node.names if a.name not in pts_scott.__all__]
            found += [f"pts_scott.{name}" for name in names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module] if node.module.startswith("pts_scott.") else []
    return found


def make_small(notebook: NotebookNode, small: dict) -> None:
    """Override the parameters of a notebook with small values."""
    cell = code_cells(notebook)[0]
    assert "parameters" in cell.metadata.get("tags", [])
    statements = ast.parse(cell.source).body
    assigned = {t.id for statement in statements for t in statement.targets}
    assert set(small) <= assigned, f"not a parameter: {set(small) - assigned}"
    cell.source += "".join(f"\n{name} = {value!r}" for name, value in small.items())


def clear(notebook: NotebookNode) -> None:
    """Remove stored outputs, so that all outputs are those of this run."""
    for cell in code_cells(notebook):
        cell.execution_count, cell.outputs = None, []


def skip_without_data(name: str | None) -> None:
    if name is None:
        return
    table = available().set_index("name")
    if not table.loc[name, "where"]:  # raises for an unknown name
        pytest.skip(f"{FOLDER} does not name a folder with the dataset {name}")


def use_this_interpreter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the kernel "python3" this interpreter, regardless of installed kernels."""
    kernelspec = pytest.importorskip("ipykernel.kernelspec")
    kernelspec.write_kernel_spec(folder / "kernels" / "python3")
    monkeypatch.setenv("JUPYTER_PATH", str(folder))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(folder))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    if os.environ.get(FOLDER):  # the notebook runs in another folder
        monkeypatch.setenv(FOLDER, str(Path(os.environ[FOLDER]).expanduser().resolve()))


def working_folder(folder: Path) -> Path:
    """Return a new folder next to the configs, as the notebooks' own folder is."""
    (folder / "configs").symlink_to(ROOT / "configs", target_is_directory=True)
    here = folder / "notebooks"
    here.mkdir()
    return here
