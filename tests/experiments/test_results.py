"""Results are read once each and in order, and errors name the broken file."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from helpers.small_results import (
    OPTIMIZER_NAMES,
    SEEDS,
    VERSIONS,
    loss_curve,
    run_record,
    write_config,
    write_results,
    write_run,
)

from pts_scott.errors import ArgumentError, FileLayoutError
from pts_scott.experiments.report.summary import summarize_runs
from pts_scott.experiments.results import (
    PAPER_OPTIMIZERS,
    SettingFolder,
    read_curves,
    read_runs,
    read_variance,
    read_versions,
    sort_optimizers,
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return write_results(tmp_path_factory.mktemp("bench"))


def test_optimizers_are_sorted_by_update_rule_and_in_the_order_of_the_paper():
    names = sort_optimizers(["b", "Adam", "a", "SCott", "Adam"])
    assert names == ["SCott", "Adam", "a", "b"]
    assert sort_optimizers(reversed(PAPER_OPTIMIZERS)) == list(PAPER_OPTIMIZERS)


def test_optimizers_of_one_update_rule_stay_together():
    rules = {"auto Adam": "adam", "auto SGD": "sgd", "of AdamW": "adamw"}
    names = ["unknown", "Adagrad", *rules, "S-Adam", "SGD"]
    assert sort_optimizers(names, rules) == [
        *("SGD", "auto SGD", "S-Adam", "auto Adam", "of AdamW", "Adagrad", "unknown")
    ]


def test_every_run_is_read_once_and_in_order(results):
    runs = read_runs(results)
    assert len(runs) == 2 * 4 * 3 - 1
    one = runs[runs["setting"] == "mlp-traffic-M1"]
    assert list(dict.fromkeys(one["optimizer"])) == list(OPTIMIZER_NAMES)
    assert list(one["seed"].iloc[:3]) == list(SEEDS)
    assert runs["status"].value_counts().to_dict() == {
        "finished": 20,
        "diverged": 2,
        "failed": 1,
    }
    assert runs.loc[runs["status"] != "finished", "train_loss"].isna().all()


def test_curves_have_the_keys_of_their_run(results):
    curves = read_curves(results, read_runs(results))
    keys = ["setting", "optimizer", "method", "rule", "seed", "status"]
    assert list(curves.columns[:6]) == keys
    assert set(curves["rule"]) == {"sgd"}
    assert len(curves) == 22 * 7  # the failed run has none
    run = curves[(curves["setting"] == "mlp-traffic-M1") & (curves["optimizer"] == "SGD")]
    assert sorted(run["seed"].unique()) == list(SEEDS)


def test_variance_and_versions_are_read_if_present(results):
    assert read_variance(results / "mlp-a<b>&c-M1") is None
    assert len(read_variance(results / "mlp-traffic-M1")) == 6
    versions = read_versions(results, read_runs(results))
    assert len(versions) == 23
    assert versions["mlp-traffic-M1/runs/SGD-seed0"] == VERSIONS


def test_duplicate_run_raises(tmp_path):
    one = write_run(tmp_path, run_record("SGD", 0))
    write_run(tmp_path, run_record("SGD", 1))
    other = tmp_path / "a copy" / "runs" / "SGD-seed0"
    shutil.copytree(one, other)
    with pytest.raises(FileLayoutError, match="SGD, seed 0") as caught:
        read_runs(tmp_path)
    assert str(one) in str(caught.value)
    assert str(other) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"setting": "a", ', "cannot be read as JSON"),
        ("[1, 2]", "expected a dict"),
        (json.dumps({**run_record(), "dataset": None}), "no dataset"),
        (json.dumps(run_record(status="done")), "'done'; expected finished"),
        (json.dumps(run_record(train="low")), "train_loss is not a number: 'low'"),
        (json.dumps(run_record(train=10**400)), "train_loss is not a number"),
        (json.dumps(run_record(train=[1])), "train_loss is not a number"),
        (json.dumps(run_record(seed=float("nan"))), "seed is not an integer"),
        (json.dumps(run_record(batch_size=float("inf"))), "batch_size is not an integer"),
        (json.dumps(run_record(seed=0.5)), "seed is not an integer"),
        ("[" * 100_000, "cannot be read as JSON"),
        ("\0", "cannot be read as JSON"),
    ],
)
def test_unreadable_run_raises_with_its_path(tmp_path, text, message):
    path = write_run(tmp_path, run_record()) / "run.json"
    path.write_text(text)
    with pytest.raises(FileLayoutError, match=re.escape(message)) as caught:
        read_runs(tmp_path)
    assert str(path) in str(caught.value)


def test_unreadable_curve_raises_with_its_path(tmp_path):
    curve = loss_curve().drop(columns="seconds")
    path = write_run(tmp_path, run_record(), curve) / "curve.csv"
    with pytest.raises(FileLayoutError, match="missing column seconds") as caught:
        read_curves(tmp_path, read_runs(tmp_path))
    assert str(path) in str(caught.value)
    path.write_text("")
    with pytest.raises(FileLayoutError, match="cannot be read as CSV"):
        read_curves(tmp_path, read_runs(tmp_path))


@pytest.mark.parametrize("value", ["=1+1", "<script>", "1e", "__import__('os')"])
def test_curve_with_text_in_a_numeric_column_raises(tmp_path, value):
    curve = loss_curve().astype({"train_loss": object})
    curve.loc[2, "train_loss"] = value
    write_run(tmp_path, run_record(), curve)
    with pytest.raises(
        FileLayoutError, match="'train_loss' contains values that are not"
    ):
        read_curves(tmp_path, read_runs(tmp_path))


def test_warnings_of_any_type_become_text(tmp_path):
    write_run(tmp_path, run_record(seed=0, warnings=5))
    write_run(tmp_path, run_record(seed=1, warnings=["a", {"b": 1}]))
    assert list(read_runs(tmp_path)["warnings"]) == ["5", "a; {'b': 1}"]


def test_run_that_is_still_being_written_is_skipped(tmp_path):
    path = write_run(tmp_path, run_record("SGD", 1), loss_curve())
    write_run(tmp_path, run_record("SGD", 2), loss_curve())
    path.rename(path.with_name(path.name + ".part"))
    assert list(read_runs(tmp_path)["seed"]) == [2]


def test_failed_run_takes_the_loss_name_of_its_setting(tmp_path):
    write_run(tmp_path, run_record("SGD", 0), loss_curve())
    failed = run_record("SGD", 1, status="failed")
    write_run(tmp_path, {k: failed[k] for k in failed if k not in ("loss", "steps")})
    runs = read_runs(tmp_path)
    assert list(runs["loss"]) == ["NLL", "NLL"]
    assert summarize_runs(runs)["seeds"].tolist() == [2]


def test_windows_per_step_and_replacement_come_from_the_config(tmp_path):
    write_config(tmp_path, "mlp-traffic-M1", ("SGD",), (0,))
    for name in ("SGD", "wide", "reshuffled"):
        write_run(tmp_path, run_record(name))
    own = {"SGD": {}, "wide": {"batch_size": 16}, "reshuffled": {"replacement": False}}
    path = tmp_path / "mlp-traffic-M1" / "config.yaml"
    path.write_text(json.dumps({"optimizers": own, "seeds": [0]}))
    runs = read_runs(tmp_path).set_index("optimizer")
    assert runs["windows_per_step"].to_dict() == {"SGD": 1, "reshuffled": 1, "wide": 16}
    assert runs.index[~runs["replacement"].astype(bool)].tolist() == ["reshuffled"]


def test_missing_folder_raises(tmp_path):
    with pytest.raises(ArgumentError, match="not a folder"):
        read_runs(tmp_path / "nowhere")


def test_setting_lists_its_missing_runs(tmp_path):
    write_config(tmp_path, "mlp-traffic-M1", ("SGD", "SCott"), (0, 1))
    for seed in (0, 1):
        write_run(tmp_path, run_record("SGD", seed))
    write_run(tmp_path, run_record("SCott", 1))
    (setting,) = SettingFolder.read_all(tmp_path, read_runs(tmp_path))
    assert (setting.name, setting.planned) == ("mlp-traffic-M1", 4)
    assert setting.missing == ["SCott, seed 0"]


def test_unreadable_config_raises_with_its_path(tmp_path):
    write_run(tmp_path, run_record())
    path = tmp_path / "mlp-traffic-M1" / "config.yaml"
    for text in (
        *("a: [1,", "a: !!python/name:os.system", "optimizers: 5", "seeds: {a: 1}"),
        *("optimizers: [1]", "optimizers: {SGD: 1}", "[" * 3000, "\x07"),
    ):
        path.write_text(text)
        with pytest.raises(FileLayoutError, match=re.escape(str(path))):
            SettingFolder.read_all(tmp_path, read_runs(tmp_path))
    path.unlink()
    (setting,) = SettingFolder.read_all(tmp_path, read_runs(tmp_path))
    assert (setting.planned, setting.missing) == (0, [])
