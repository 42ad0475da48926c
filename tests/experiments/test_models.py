"""Models that a config names: the paper's four, and the library's own estimators."""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from pts_scott import load_predictor
from pts_scott.backends import backend
from pts_scott.backends.estimators import library_estimators
from pts_scott.cli import main
from pts_scott.errors import ConfigError
from pts_scott.experiments.config_files import load_experiment
from pts_scott.experiments.models import available_models, find_model
from pts_scott.experiments.setting import Setting
from pts_scott.experiments.shipped_configs import shipped_configs

GLUONTS = backend.NAME == "gluonts"
ROOT, OTHER = ("gluonts", "pts") if GLUONTS else ("pts", "gluonts")
SIZE = "hidden_size" if GLUONTS else "num_cells"
DEEPAR = {
    "name": f"{ROOT}.DeepAR",
    "arguments": {SIZE: 8, "lags_seq": [1, 24]},
}
PATH = (
    "gluonts.torch.model.deepar.DeepAREstimator"
    if GLUONTS
    else "pts.model.deepar.DeepAREstimator"
)
#: Small sizes for every model that a config can name.
SMALL = {
    "gluonts.DeepAR": DEEPAR["arguments"],
    "gluonts.LagTST": {"d_model": 8, "nhead": 2, "lags_seq": [1, 24]},
    "gluonts.MQF2MultiHorizon": {
        **{"hidden_size": 8, "icnn_hidden_size": 8, "icnn_num_layers": 1},
        "lags_seq": [1, 2],
    },
    "gluonts.PatchTST": {"patch_len": 4, "d_model": 8, "nhead": 2},
    "gluonts.TemporalFusionTransformer": {"hidden_dim": 8, "variable_dim": 8},
    "gluonts.WaveNet": {"num_bins": 32},
    "pts.DeepAR": DEEPAR["arguments"],
    "pts.NBEATS": {"num_stacks": 2, "widths": [16]},
    "pts.TemporalFusionTransformer": {"variable_dim": 8, "embed_dim": 8},
    "pts.Transformer": {
        **{"d_model": 8, "num_heads": 2, "lags_seq": [1, 24]},
        **{"num_encoder_layers": 1, "num_decoder_layers": 1},
    },
}
LIBRARY = [name for name in available_models() if "." in name]


@pytest.fixture(autouse=True)
def _in_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def config_with(small_config):
    """Write a model into the small config."""

    def write(model, **others) -> Path:
        tree = yaml.safe_load(small_config.read_text())
        small_config.write_text(yaml.safe_dump({**tree, "model": model, **others}))
        return small_config

    return write


# -- names and arguments ----------------------------------------------------------------


def test_every_estimator_of_the_library_has_a_name():
    package = importlib.import_module("gluonts.torch.model" if GLUONTS else "pts.model")
    found = {
        name.removesuffix("Estimator")
        for _, part, is_package in pkgutil.iter_modules(package.__path__)
        if is_package
        for name in vars(importlib.import_module(f"{package.__name__}.{part}"))
        if name.endswith("Estimator")
    }
    assert len(found) > 10
    assert {f"{ROOT}.{name}" for name in found} == {*library_estimators()}


@pytest.mark.parametrize("name", [DEEPAR["name"], f"{ROOT}.DeepAREstimator", PATH])
def test_name_and_import_path_are_the_same_model(config_with, name):
    assert find_model(name) is find_model(DEEPAR["name"])
    experiment = load_experiment(config_with(name, name=None))
    assert experiment.setting == "deepar-waves.txt-M4"


def test_model_on_the_command_line_replaces_the_configs(config_with):
    path = config_with({"name": "var"})
    for option in (["--model", PATH], [f"--model={PATH}"], ["--model.name", PATH]):
        assert load_experiment(path, option).model.name == PATH


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{ROOT}.DepAR", f"Did you mean '{ROOT}.DeepAR'"),
        ("DeepAR", f"Did you mean '{ROOT}.DeepAR'"),
        (f"{ROOT}.TFT", f"Did you mean '{ROOT}.TemporalFusionTransformer'"),
        (f"{ROOT}.nowhere.DeepAREstimator", "there is no such model"),
        (f"{OTHER}.DeepAR", "is a model of .* but this environment has"),
        ("os.system", "there is no such model"),
        ("subprocess.Popen", "there is no such model"),
        ("", "there is no such model"),
        (".", "there is no such model"),
        (f"{ROOT}..DeepAR", "there is no such model"),
        (
            "gluonts.ITransformer" if GLUONTS else "pts.TimeGrad",
            "forecasts several series together, so configs cannot name it",
        ),
    ],
)
@pytest.mark.filterwarnings("error")
def test_unknown_model_is_refused_with_the_nearest_one(config_with, name, message):
    with pytest.raises(ConfigError, match=message):
        load_experiment(config_with({"name": name}))


def test_module_that_a_config_names_is_not_imported(config_with, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("raise SystemExit('imported')")
    (tmp_path / "gluonts_mine.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("mine.DeepAREstimator", "gluonts_mine.DeepAR"):
        with pytest.raises(ConfigError, match="no such model"):
            load_experiment(config_with({"name": name}))
    assert not {"mine", "gluonts_mine"} & sys.modules.keys()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_layrs": 2}, r"'num_layrs'.*Did you mean 'num_layers'\? It takes .*lags"),
        ({"qqqqqqqqqqqq": 2}, "does not take. It takes .*num_layers"),
        ({"lr": 0.1}, r"about training.*ScottTrainer\(learning_rate=.*In a config"),
        ({"batch_size": 8}, r"about training.*ScottTrainer\(batch_size"),
        ({"freq": "D"}, "which the data section defines"),
        ({"context_length": 7}, "which the data section defines"),
        ({"trainer": 7}, "does not take"),
    ],
)
def test_unknown_argument_is_refused_when_the_config_is_read(
    config_with, arguments, message
):
    path = config_with({"name": DEEPAR["name"], "arguments": arguments})
    with pytest.raises(ConfigError, match=message):
        load_experiment(path)


@pytest.mark.parametrize("command", ["train", "bench", "tune", "diagnose", "variance"])
def test_wrong_value_is_refused_before_there_is_a_folder(config_with, command, capsys):
    arguments = {**DEEPAR["arguments"], "num_layers": "many"}
    path = config_with({**DEEPAR, "arguments": arguments})
    options = ["--optimizer", "SGD"] if command == "train" else []
    assert main([command, str(path), *options]) == 1
    error = capsys.readouterr().err
    assert f"error: {ROOT}.DeepAR refuses model.arguments=" in error
    assert "num_layers" in error
    assert not Path("results").exists()


@pytest.mark.skipif(not GLUONTS, reason="PatchTST is a model of GluonTS")
def test_missing_argument_is_named(config_with):
    with pytest.raises(ConfigError, match="PatchTST needs patch_len; give it in model"):
        load_experiment(config_with({"name": "gluonts.PatchTST"}))
    path = config_with({"name": "gluonts.PatchTST", "arguments": {"patch_len": 40}})
    with pytest.raises(ConfigError, match="refuses model.arguments"):
        Setting(load_experiment(path))  # longer than the context


def test_models_are_listed_with_their_arguments(capsys):
    assert main(["models"]) == 0
    listed = capsys.readouterr().out
    for name in ("mlp", "nbeats", *LIBRARY):
        assert f"{name} " in listed
    assert "forecasts several series together" in listed
    assert main(["models", DEEPAR["name"]]) == 0
    described = capsys.readouterr().out
    assert SIZE in described
    assert "prediction_length" not in described  # the data section has it
    assert main(["models", "DeepR"]) == 1
    assert "Did you mean" in capsys.readouterr().err


# -- windows ----------------------------------------------------------------------------


@pytest.mark.parametrize("tuning", [False, True])
def test_all_models_have_the_same_windows(config_with, tuning):
    own = Setting(load_experiment(config_with("var")), tuning=tuning)
    library = Setting(load_experiment(config_with(DEEPAR)), tuning=tuning)
    for part in ("training", "held_out"):
        one, other = getattr(own, part), getattr(library, part)
        assert len(one) == len(other)
        numbers = torch.arange(len(one))
        expected = one.gather(numbers, ["future_target"])["future_target"]
        found = other.gather(numbers, ["future_target"])["future_target"]
        torch.testing.assert_close(found, expected)


def test_stride_of_the_data_applies_to_library_models(config_with):
    path = config_with(DEEPAR)
    counts = [
        len(Setting(load_experiment(path, ["--data.stride", stride])).training)
        for stride in ("1", "5")
    ]
    assert counts[1] == pytest.approx(counts[0] / 5, abs=3)


def test_lags_of_held_out_windows_reach_into_the_training_range(config_with):
    setting = Setting(load_experiment(config_with(DEEPAR)))
    batch = setting.held_out.gather(torch.tensor([0]), ["past_target"])
    past = batch["past_target"][0]
    assert past.shape[0] > 12  # the context and the lags before it
    whole = setting.series.targets[0]
    end = len(whole) - len(setting.split.test.targets[0]) + 12
    np.testing.assert_allclose(past, whole[end - len(past) : end], rtol=1e-6)


def test_features_of_the_data_reach_the_model(tmp_path):
    steps = 120
    hours = pd.date_range("2024-01-01", periods=steps, freq="h")
    frame = pd.concat(
        pd.DataFrame(
            {
                "timestamp": hours,
                "item_id": name,
                "target": 5 + np.sin(np.arange(steps) + number),
                "price": np.cos(np.arange(steps)),
            }
        )
        for number, name in enumerate(("a", "b", "c"))
    )
    frame.to_csv(tmp_path / "sales.csv", index=False)
    static = pd.DataFrame({"item_id": ["a", "b", "c"], "shop": ["x", "y", "x"]})
    static.to_csv(tmp_path / "shops.csv", index=False)
    path = tmp_path / "sales.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "data": {
                    **{"name": "sales.csv", "known": ["price"], "static": "shops.csv"},
                    **{"context_length": 8, "prediction_length": 2},
                },
                "model": DEEPAR,
                "optimizers": {"Adam": {"method": "plain", "optimizer": "adam"}},
                "time_budget": None,
                "gradient_budget": 64,
                "batch_size": 8,
                "evaluations": 1,
                "backtest_samples": 5,
                "compile": False,
            }
        )
    )
    arguments = Setting(load_experiment(path)).estimator("Adam", 0).arguments
    assert arguments["cardinality"] == [2]
    if GLUONTS:
        assert arguments["num_feat_dynamic_real"] == 1
    else:
        assert arguments["use_feat_dynamic_real"] is True
    assert main(["train", str(path)]) == 0


# -- every command ----------------------------------------------------------------------


def test_bench_trains_backtests_and_resumes_a_library_model(config_with, capsys):
    command = ["bench", str(config_with(DEEPAR)), "--seeds", "[0]"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert "| S-Adam |" in out
    assert "[2/2]" in err
    assert Path("results/bench/report.html").exists()
    record = json.loads(
        Path("results/bench/small/runs/S-Adam-seed0/run.json").read_text()
    )
    assert (record["model"], record["loss"]) == ("DeepAR", "NLL")
    assert record["status"] == "finished"
    assert record["test_loss"] < 5
    assert record["CRPS"] > 0
    assert Path("results/bench/small/variance.csv").exists()
    assert main(command) == 0
    assert "2 of them already on disk" in capsys.readouterr().err


def test_train_saves_a_predictor_of_the_library(config_with, capsys):
    path = config_with(DEEPAR)
    assert main(["train", str(path), "--optimizer", "S-Adam"]) == 0
    folder = Path(capsys.readouterr().out.strip())
    predictor = load_predictor(folder / "predictor")
    series = Setting(load_experiment(path)).series
    assert len(list(predictor.predict(series.dataset(), num_samples=5))) == 3
    assert main(["train", str(folder / "config.yaml"), "--output", "again"]) == 0
    again = Path(capsys.readouterr().out.strip())
    losses = [
        json.loads((f / "run.json").read_text())["test_loss"] for f in (folder, again)
    ]
    assert losses[0] == losses[1]


def test_tune_diagnose_and_variance_take_a_library_model(config_with, capsys):
    path = str(config_with(DEEPAR))
    options = ["--tune.learning_rate", "[0.01, 0.001]", "--tune.gamma", "[]"]
    assert main(["tune", path, "--only", "[S-Adam]", *options]) == 0
    best = Path(capsys.readouterr().out.strip())
    assert load_experiment(best).model.name == DEEPAR["name"]
    assert main(["diagnose", path, "--steps", "10", "--windows", "64"]) == 0
    assert "Advice: " in capsys.readouterr().out
    assert main(["variance", path]) == 0
    assert "lowest variance" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARY)
@pytest.mark.filterwarnings("ignore::pts_scott.errors.ScottWarning")
def test_every_model_of_the_library_trains_from_a_config(config_with, name, capsys):
    path = config_with({"name": name, "arguments": SMALL.get(name, {})})
    options = ["--optimizer", "S-Adam", "--gradient_budget", "300"]
    assert main(["train", str(path), *options, "--backtest_samples", "5"]) == 0
    record = Path(capsys.readouterr().out.strip()) / "run.json"
    assert json.loads(record.read_text())["status"] == "finished"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in shipped_configs() if name.startswith("library/")]
)
def test_shipped_configs_of_library_models_run(name, capsys):
    is_ours = name.startswith("library/pts-") != GLUONTS
    options = ["--optimizer", "S-Adam", "--time_budget", "1", "--evaluations", "1"]
    expected = 0 if is_ours else 1
    assert main(["train", name, *options, "--backtest_samples", "5"]) == expected
    assert is_ours or "but this environment has" in capsys.readouterr().err
