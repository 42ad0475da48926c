"""Reading the results of a benchmark: every run once, and what is wrong is named."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from helpers.small_results import (
    NAMES,
    SEEDS,
    VERSIONS,
    curve,
    record,
    write_config,
    write_results,
    write_run,
)

from pts_scott.errors import ArgumentError, FileLayoutError
from pts_scott.experiments.report.verdicts import summary
from pts_scott.experiments.results import (
    OPTIMIZERS,
    SettingFolder,
    in_order,
    read_curves,
    read_runs,
    read_variance,
    read_versions,
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return write_results(tmp_path_factory.mktemp("bench"))


def test_the_paper_knows_the_order():
    assert in_order(["b", "Adam", "a", "SCott", "Adam"]) == ["SCott", "Adam", "a", "b"]
    assert in_order(reversed(OPTIMIZERS)) == list(OPTIMIZERS)


def test_every_run_is_read_once_and_in_order(results):
    runs = read_runs(results)
    assert len(runs) == 2 * 4 * 3 - 1
    one = runs[runs["setting"] == "mlp-traffic-M1"]
    assert list(dict.fromkeys(one["optimizer"])) == list(NAMES)
    assert list(one["seed"].iloc[:3]) == list(SEEDS)
    assert runs["status"].value_counts().to_dict() == {
        "finished": 20,
        "diverged": 2,
        "failed": 1,
    }
    assert runs.loc[runs["status"] != "finished", "train_loss"].isna().all()


def test_curves_know_their_run(results):
    curves = read_curves(results, read_runs(results))
    assert list(curves.columns[:4]) == ["setting", "optimizer", "seed", "status"]
    assert len(curves) == 22 * 7  # the failed run has none
    run = curves[(curves["setting"] == "mlp-traffic-M1") & (curves["optimizer"] == "SGD")]
    assert sorted(run["seed"].unique()) == list(SEEDS)


def test_variance_and_versions_are_read_where_they_are(results):
    assert read_variance(results / "mlp-a<b>&c-M1") is None
    assert len(read_variance(results / "mlp-traffic-M1")) == 6
    versions = read_versions(results, read_runs(results))
    assert len(versions) == 23
    assert versions["mlp-traffic-M1/runs/SGD-seed0"] == VERSIONS


def test_a_run_that_is_there_twice_is_refused(tmp_path):
    one = write_run(tmp_path, record("SGD", 0))
    write_run(tmp_path, record("SGD", 1))
    other = tmp_path / "a copy" / "runs" / "SGD-seed0"
    shutil.copytree(one, other)
    with pytest.raises(FileLayoutError, match="SGD, seed 0") as caught:
        read_runs(tmp_path)
    assert str(one) in str(caught.value)
    assert str(other) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"setting": "a", ', "cannot be read as JSON"),
        ("[1, 2]", "expected a dict"),
        (json.dumps({**record(), "dataset": None}), "no dataset"),
        (json.dumps(record(status="done")), "'done'; expected finished"),
        (json.dumps(record(train="low")), "train_loss is no number: 'low'"),
        (json.dumps(record(train=10**400)), "train_loss is no number"),
        (json.dumps(record(train=[1])), "train_loss is no number"),
        (json.dumps(record(seed=float("nan"))), "seed is no whole number"),
        (json.dumps(record(batch_size=float("inf"))), "batch_size is no whole number"),
        (json.dumps(record(seed=0.5)), "seed is no whole number"),
        ("[" * 100_000, "cannot be read as JSON"),
        ("\0", "cannot be read as JSON"),
    ],
)
def test_an_unreadable_run_is_named(tmp_path, text, words):
    path = write_run(tmp_path, record()) / "run.json"
    path.write_text(text)
    with pytest.raises(FileLayoutError, match=re.escape(words)) as caught:
        read_runs(tmp_path)
    assert str(path) in str(caught.value)


def test_an_unreadable_curve_is_named(tmp_path):
    path = write_run(tmp_path, record(), curve().drop(columns="seconds")) / "curve.csv"
    with pytest.raises(FileLayoutError, match="there is no column seconds") as caught:
        read_curves(tmp_path, read_runs(tmp_path))
    assert str(path) in str(caught.value)
    path.write_text("")
    with pytest.raises(FileLayoutError, match="cannot be read as CSV"):
        read_curves(tmp_path, read_runs(tmp_path))


@pytest.mark.parametrize("value", ["=1+1", "<script>", "1e", "__import__('os')"])
def test_a_curve_without_numbers_is_named(tmp_path, value):
    points = curve().astype({"train_loss": object})
    points.loc[2, "train_loss"] = value
    write_run(tmp_path, record(), points)
    with pytest.raises(FileLayoutError, match="column 'train_loss' has no numbers"):
        read_curves(tmp_path, read_runs(tmp_path))


def test_warnings_of_any_kind_are_text(tmp_path):
    write_run(tmp_path, record(seed=0, warnings=5))
    write_run(tmp_path, record(seed=1, warnings=["a", {"b": 1}]))
    assert list(read_runs(tmp_path)["warnings"]) == ["5", "a; {'b': 1}"]


def test_a_run_that_is_being_written_is_not_read(tmp_path):
    path = write_run(tmp_path, record("SGD", 1), curve())
    write_run(tmp_path, record("SGD", 2), curve())
    path.rename(path.with_name(path.name + ".part"))
    assert list(read_runs(tmp_path)["seed"]) == [2]


def test_a_failed_run_without_losses_belongs_to_its_setting(tmp_path):
    write_run(tmp_path, record("SGD", 0), curve())
    failed = record("SGD", 1, status="failed")
    write_run(tmp_path, {k: failed[k] for k in failed if k not in ("loss", "steps")})
    runs = read_runs(tmp_path)
    assert list(runs["loss"]) == ["NLL", "NLL"]
    assert summary(runs)["seeds"].tolist() == [2]


def test_what_is_no_folder_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="not a folder"):
        read_runs(tmp_path / "nowhere")


def test_a_setting_knows_what_is_missing(tmp_path):
    write_config(tmp_path, "mlp-traffic-M1", ("SGD", "SCott"), (0, 1))
    for seed in (0, 1):
        write_run(tmp_path, record("SGD", seed))
    write_run(tmp_path, record("SCott", 1))
    (setting,) = SettingFolder.all(tmp_path, read_runs(tmp_path))
    assert (setting.name, setting.planned) == ("mlp-traffic-M1", 4)
    assert setting.missing == ["SCott, seed 0"]


def test_a_config_that_cannot_be_read_is_named(tmp_path):
    write_run(tmp_path, record())
    path = tmp_path / "mlp-traffic-M1" / "config.yaml"
    for text in (
        *("a: [1,", "a: !!python/name:os.system", "optimizers: 5", "seeds: {a: 1}"),
        *("optimizers: [1]", "[" * 3000, "\x07"),
    ):
        path.write_text(text)
        with pytest.raises(FileLayoutError, match=re.escape(str(path))):
            SettingFolder.all(tmp_path, read_runs(tmp_path))
    path.unlink()
    (setting,) = SettingFolder.all(tmp_path, read_runs(tmp_path))
    assert (setting.planned, setting.missing) == (0, [])
