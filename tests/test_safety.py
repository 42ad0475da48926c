"""No code from files: text and data are read as data, and nothing hangs on garbage.

Of checkpoints see test_checkpoints.py, of predictors test_predictors.py, of configs and
results, which stay in their folder, tests/experiments.
"""

from __future__ import annotations

import ast
import contextlib
import gzip
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import pts_scott
from pts_scott import ArrowDataset, Stratifier, datasets
from pts_scott.datasets import series_files
from pts_scott.errors import (
    ArgumentError,
    DataError,
    DatasetNotFoundError,
    FileLayoutError,
    ScottError,
    ScottWarning,
)

SOURCES = sorted(Path(pts_scott.__file__).parent.rglob("*.py"))
DAYS = pd.date_range("2024-01-01", periods=40, freq="D")
WAVE = 5 + np.sin(np.arange(40))


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


# -- the package's own code -----------------------------------------------------------

MODULES = {"cloudpickle", "dill", "joblib", "marshal", "shelve", "subprocess"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
CALLS = {
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "pd.read_pickle", "os.system"),
    *("yaml.load", "yaml.full_load", "yaml.unsafe_load", "yaml.load_all"),
    *("locate", "pydoc.locate", "os.popen"),
    *("torch.jit.load", "torch.hub.load", "torch.package.PackageImporter"),
}
SAFE_WITH = {"torch.load": ("weights_only", True), "np.load": ("allow_pickle", False)}
# The public names of the package are imported when they are first used; and a name in a
# predictor's file is, after it was looked at.
JUSTIFIED = {"__init__.py: import_module", "predictors.py: locate"}


def dangers(path: Path) -> Iterator[str]:
    """What in a source could run code of a file."""
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


def test_nothing_in_the_package_runs_code_of_a_file():
    found = {f"{path.name}: {danger}" for path in SOURCES for danger in dangers(path)}
    assert found == JUSTIFIED


@pytest.mark.parametrize(
    "code",
    [
        *("eval('1')", "exec(text)", "pickle.loads(b)", "import joblib", "yaml.load(f)"),
        *("torch.load(f)", "torch.load(f, weights_only=False)", "np.load(f)"),
        *("np.load(f, allow_pickle=True)", "from dill import loads", "pd.read_pickle(f)"),
        "importlib.import_module(name)",
    ],
)
def test_the_search_for_it_finds_it(code, tmp_path):
    (tmp_path / "code.py").write_text(code)
    assert list(dangers(tmp_path / "code.py"))


# -- policies as text -----------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch {ran}')",
        "calendar(__import__('os').system('touch {ran}'))",
        "series() if __import__('os').system('touch {ran}') else series()",
        "Stratifier.__init__.__globals__['os'].system('touch {ran}')",
        "custom(print)",
        "(lambda: series())()",
        "[series()][0]",
        "random({{[]: 1}})",
        "random(2**99999999999)",
        "-" * 5000 + "1",
        "(" * 5000,
        "series() * " * 5000 + "series()",
        "\0",
    ],
)
def test_a_policy_as_text_runs_nothing(text, tmp_path):
    ran = tmp_path / "ran"
    with pytest.raises(ArgumentError, match="stratifier"):
        Stratifier.parse(text.format(ran=ran))
    assert not ran.exists()


# -- text files -----------------------------------------------------------------------

TEXT = {"start": "2024-01-01", "freq": "D"}


@pytest.mark.parametrize("name", ["my.txt", "my.txt.gz", "my.csv", "my.csv.gz"])
def test_a_file_that_unpacks_to_zeros_is_not_read_to_its_end(name, tmp_path, monkeypatch):
    path, data = tmp_path / name, bytes(100_000)
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    monkeypatch.setattr(series_files, "HEAD", 1000)
    opened: list[Any] = []
    real = gzip.open if name.endswith("gz") else Path.open

    def watched(*args: Any) -> Any:
        opened.append(real(*args))
        return opened[-1]

    owner = gzip if name.endswith("gz") else Path
    monkeypatch.setattr(owner, "open", watched)
    monkeypatch.setattr(series_files.Path, "read_bytes", None)
    with pytest.raises(FileLayoutError, match="not text in UTF-8 .byte 0 is zero"):
        datasets.load(path, **(TEXT if "txt" in name else {}))
    assert len(opened) == 1


def test_a_file_that_unpacks_to_far_too_much_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "my.txt.gz"
    path.write_bytes(gzip.compress(b"1,2\n3,4\n" * 50_000))
    monkeypatch.setattr(series_files, "UNPACKED", 100_000)
    with pytest.raises(FileLayoutError, match="bytes unpacked, 100 times its size"):
        datasets.load(path, **TEXT)
    monkeypatch.setattr(series_files, "UNPACKED", 400_000)
    assert len(datasets.load(path, **TEXT)) == 2
    monkeypatch.setattr(series_files, "UNPACKED", 100_000)
    monkeypatch.setattr(series_files, "PACKED_TIMES", 10_000)
    assert len(datasets.load(path, **TEXT)) == 2


@pytest.mark.parametrize("seed", range(4))
def test_garbage_is_refused_and_does_not_hang(seed, tmp_path):
    generator = np.random.default_rng(seed)
    letters = np.frombuffer(b'0123456789,.\n"\r-e \xff;\xc3', dtype=np.uint8)
    for _ in range(20):
        size = int(generator.integers(1, 3000))
        garbage = generator.integers(0, 256, size, dtype=np.uint8)
        for data in (garbage.tobytes(), generator.choice(letters, size).tobytes()):
            for name in ("my.txt", "my.csv", "my.txt.gz", "my.parquet"):
                (tmp_path / name).write_bytes(data)
                with pytest.raises(DataError):
                    datasets.load(tmp_path / name, **(TEXT if "txt" in name else {}))


@pytest.mark.parametrize("text", ['"{}",a\n2,3\n', 'date,a\n"{}",1\n'])
def test_a_quote_that_is_not_closed_is_named(text, tmp_path):
    path = tmp_path / "my.csv"
    path.write_text(text.format("x" * 200_000))
    with pytest.raises(FileLayoutError, match=r"line \d of my.csv .* quote"):
        datasets.load(path)


@pytest.mark.parametrize(
    "name",
    ["a\0b.csv", "a" * 5000 + ".csv", "~nobody_of_this_name/a.csv", "/dev/null", ".."],
)
def test_what_is_no_file_is_not_opened(name):
    with pytest.raises((DatasetNotFoundError, FileLayoutError)) as caught:
        datasets.load(name)
    assert len(str(caught.value)) < 500


def test_an_address_is_not_fetched():
    with pytest.raises(DatasetNotFoundError, match="no file"):
        datasets.load("http://127.0.0.1:9/a.csv")


# -- Parquet and Arrow ----------------------------------------------------------------


@pytest.fixture
def arrow() -> Any:
    return pytest.importorskip("pyarrow")


def write_parquet(path: Path, metadata: Any = None, **columns: Any) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(columns)
    pq.write_table(table.replace_schema_metadata(metadata) if metadata else table, path)
    return path


OBJECTS = {
    "lists": [[1.0, 2.0]] * 40,
    "dicts": [{"a": 1}] * 40,
    "bytes": [b"1", b"2"] * 20,
    "pickles": [pickle.dumps(Touch(Path("ran")))] * 40,
}


@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("role", ["values", "names", "times"])
def test_objects_are_no_series(kind, role, arrow, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    columns: dict[str, Any] = {"timestamp": DAYS, "a": WAVE}
    if role == "values":
        columns["a"] = OBJECTS[kind]
    elif role == "names":
        columns = {"timestamp": DAYS, "item_id": OBJECTS[kind], "target": WAVE}
    else:
        columns["timestamp"] = OBJECTS[kind]
    path = write_parquet(tmp_path / "my.parquet", **columns)
    with pytest.raises(FileLayoutError, match="row 0 of my.parquet has .* expected text"):
        datasets.load(path)
    assert not Path("ran").exists()


def test_objects_beside_the_series_do_no_harm(arrow, tmp_path):
    columns = {"timestamp": DAYS, "item_id": ["a"] * 40, "target": WAVE}
    path = write_parquet(tmp_path / "my.parquet", **columns, more=OBJECTS["lists"])
    with pytest.warns(ScottWarning, match="not read: 'more'"):
        data = datasets.load(path)
    np.testing.assert_array_equal(data.targets[0], WAVE)


@pytest.mark.parametrize(
    "metadata", [b"{", b"[]", b'{"index_columns": ["b"], "columns": []}', b"\xff"]
)
def test_metadata_that_lie_are_refused(metadata, arrow, tmp_path):
    columns = {"timestamp": DAYS, "a": WAVE}
    path = write_parquet(tmp_path / "my.parquet", {"pandas": metadata}, **columns)
    with pytest.raises(FileLayoutError, match="my.parquet is not a Parquet file"):
        datasets.load(path)


def with_hostile_type(pa: Any, name: str, values: Any, ran: Path) -> Any:
    """A field whose type, in old versions of pyarrow, was unpickled from the file."""
    metadata = {
        "ARROW:extension:name": "arrow.py_extension_type",
        "ARROW:extension:metadata": pickle.dumps(Touch(ran)),
    }
    return pa.field(name, values.type, metadata=metadata)


@pytest.mark.filterwarnings("ignore:pickle-based deserialization:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:pyarrow.PyExtensionType is:FutureWarning")
def test_types_in_a_file_are_not_unpickled(arrow, tmp_path):
    import pyarrow.parquet as pq

    ran = tmp_path / "ran"
    starts, targets = arrow.array(DAYS[:1]), arrow.array([WAVE.tolist()])
    field = with_hostile_type(arrow, "target", targets, ran)
    schema = arrow.schema([arrow.field("start", starts.type), field])
    path = tmp_path / "my.arrow"
    with arrow.OSFile(str(path), "wb") as file, arrow.ipc.new_file(file, schema) as out:
        out.write_table(arrow.table([starts, targets], schema=schema))
    with contextlib.suppress(DataError):  # some versions don't take it for numbers
        list(ArrowDataset(path, "D"))
    times, values = arrow.array(DAYS), arrow.array(WAVE)
    field = with_hostile_type(arrow, "a", values, ran)
    schema = arrow.schema([arrow.field("timestamp", times.type), field])
    pq.write_table(arrow.table([times, values], schema=schema), tmp_path / "my.parquet")
    with contextlib.suppress(DataError):
        datasets.load(tmp_path / "my.parquet")
    assert not ran.exists()


def write_arrow(pa: Any, path: Path, start: Any) -> Path:
    table = pa.table({"start": [start] * 3, "target": [WAVE.tolist()] * 3})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table)
    return path


def test_an_arrow_file_that_is_not_whole_is_refused(arrow, tmp_path):
    path = write_arrow(arrow, tmp_path / "my.arrow", DAYS[0])
    data = path.read_bytes()
    for broken in (data[: len(data) // 2], data[:20], b"ARROW1" + bytes(300)):
        path.write_bytes(broken)
        with pytest.raises(DataError, match="my.arrow is not a complete Arrow file"):
            ArrowDataset(path, "D")


def test_offsets_that_lead_out_of_an_arrow_file_are_refused(arrow, tmp_path):
    path = write_arrow(arrow, tmp_path / "my.arrow", DAYS[0])
    offsets = np.array([0, 40, 80, 120], dtype=np.int32).tobytes()
    data = path.read_bytes()
    assert data.count(offsets) == 1
    far = np.array([0, 40, 80, 2**30], dtype=np.int32).tobytes()
    path.write_bytes(data.replace(offsets, far))
    with pytest.raises(DataError, match="my.arrow is not a complete Arrow file"):
        ArrowDataset(path, "D")


@pytest.mark.parametrize("start", ["no date", [1], b"\x80\x04."])
def test_a_start_that_is_no_date_is_named(start, arrow, tmp_path):
    dataset = ArrowDataset(write_arrow(arrow, tmp_path / "my.arrow", start), "D")
    for read in (list, lambda data: data.series_store("D", torch.float32)):
        with pytest.raises(
            ScottError, match="my.arrow has a start .*, which is not a date"
        ):
            read(dataset)
