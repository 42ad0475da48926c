"""The command line: its output, its exit codes, and its messages about mistakes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gluonts.model.predictor import Predictor

from pts_scott import datasets
from pts_scott.cli import COMMANDS, main


@pytest.fixture(autouse=True)
def _in_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_help_lists_commands_and_examples(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for command in COMMANDS:
        assert f"\n  {command} " in text
    assert "examples:" in text
    assert main([]) == 2


@pytest.mark.parametrize(
    "code",
    ["import pts_scott", *(f"main([{word!r}])" for word in ("--help", "--version", "x"))],
)
def test_import_help_and_version_do_not_wait_for_the_libraries(code):
    libraries = {"torch", "lightning", "gluonts", "pandas", "matplotlib", "numpy"}
    script = (
        "import sys\n"
        f"{'from pts_scott.cli import main' if 'main' in code else ''}\n"
        f"{code}\n"
        f"sys.exit(str(sorted({libraries} & set(sys.modules))))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", ["train", "bench", "tune", "diagnose", "variance"])
def test_commands_take_the_names_of_shipped_configs(command, capsys):
    assert main([command, "small-cpu/var-syntetic"]) == 1
    assert "Did you mean 'small-cpu/var-synthetic'" in capsys.readouterr().err
    assert main([command, "small-cpu/var-synthetic", "--batch_sise", "3"]) == 1
    assert "--batch_sise" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "bench", "tune", "diagnose", "variance"])
def test_help_of_a_command_lists_every_option(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert f"usage: pts-scott {command} CONFIG" in text
    for option in ("--time_budget", "--data.context_length", "--output"):
        assert option in text
    assert "Seconds of training per run, the same for all" in " ".join(text.split())


def test_train_counts_the_windows_that_it_uses(small_config, capsys):
    options = ["--optimizer", "SGD", "--data.stride", "10"]
    assert main(["train", str(small_config), *options]) == 0
    (count,) = re.findall(r"With stride 10, (\d+) windows", capsys.readouterr().err)
    windows = (240 - 12 - 4) // 10 + 1  # of 300 hours, 80 % are for training
    assert int(count) == 3 * windows


def test_train_saves_a_model_that_gluonts_loads(small_config, capsys):
    assert main(["train", str(small_config), "--optimizer", "SGD"]) == 0
    out, err = capsys.readouterr()
    folder = Path(out.strip())
    assert folder == Path("results/train/small/runs/SGD-seed0")
    assert "3 series" in err
    assert "100%" in err
    assert "MASE" in err
    predictor = Predictor.deserialize(folder / "predictor")
    series = datasets.load(
        small_config.parent / "waves.txt", start="2024-01-01", freq="h"
    )
    assert len(list(predictor.predict(series.dataset()))) == 3


def test_run_is_reproducible_from_the_config_in_its_folder(small_config, capsys):
    options = ["--optimizer", "S-Adam", "--seed", "3", "--output", "first"]
    assert main(["train", str(small_config), *options]) == 0
    first = Path(capsys.readouterr().out.strip())
    assert main(["train", str(first / "config.yaml"), "--output", "again"]) == 0
    again = Path(capsys.readouterr().out.strip())
    assert again == Path("again/small/runs/S-Adam-seed3")
    records = [json.loads((f / "run.json").read_text()) for f in (first, again)]
    assert records[0]["test_loss"] == records[1]["test_loss"]


def test_bench_prints_the_table_and_the_path_of_the_report(small_config, capsys):
    assert main(["bench", str(small_config), "--seeds", "[0]", "--output", "out"]) == 0
    out, err = capsys.readouterr()
    assert "| SGD |" in out
    assert "| S-Adam |" in out
    assert Path("out/report.html").exists()
    assert "out/report.html" in out
    assert "[2/2]" in err
    assert main(["report", "out"]) == 0


def test_variance_writes_a_table_and_a_figure(small_config, capsys):
    extra = ["--variance.stratifiers", '["series()"]', "--output", "out"]
    assert main(["variance", str(small_config), *extra]) == 0
    assert Path("out/small/variance.png").stat().st_size > 1000
    table = Path("out/small/variance.csv").read_text()
    for word in ("uniform", "stratified", "scott", "calendar", "series"):
        assert word in table


def test_diagnose_prints_advice_and_writes_a_table_and_a_figure(small_config, capsys):
    options = ["--steps", "20", "--windows", "128", "--output", "out"]
    assert main(["diagnose", str(small_config), *options]) == 0
    out, _ = capsys.readouterr()
    assert "VARNetwork, batch_size=4, after 20 steps" in out
    assert "Noise scale: " in out
    assert "Advice: " in out
    assert out.splitlines()[-1] == "out/small"
    assert Path("out/small/diagnosis.png").stat().st_size > 1000
    table = Path("out/small/diagnosis.csv").read_text()
    for word in ("uniform", "stratified", "control variate", "spread", "learned"):
        assert word in table


def test_tune_prints_the_path_of_the_best_config(small_config, capsys):
    assert main(["tune", str(small_config), "--only", "[SGD]", "--output", "out"]) == 0
    best = Path(capsys.readouterr().out.strip())
    assert best == Path("out/small/best.yaml")
    assert main(["bench", str(best), "--seeds=[0]", "--samplers", "false"]) == 0


def test_tune_without_optuna_says_so_before_there_is_a_folder(
    small_config, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "optuna", None)  # its import raises
    assert main(["tune", str(small_config)]) == 1
    assert 'needs Optuna: pip install "pts-scott[tune]"' in capsys.readouterr().err
    assert not Path("results").exists()


def test_lines_have_the_total_and_the_time_left(small_config, capsys):
    assert main(["train", str(small_config), "--optimizer", "SGD"]) == 0
    assert re.search(r"\d\d%  step .*; about \d+ s left", capsys.readouterr().err)
    assert main(["tune", str(small_config), "--only", "[SGD]"]) == 0
    err = capsys.readouterr().err
    assert "3 trials" in err
    assert re.search(r"\[2/3\].*; about \d+ s left", err)
    assert main(["variance", str(small_config)]) == 0
    assert re.search(r"\d\d%  step .*; about \d+ s left", capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "bench", "tune", "diagnose", "variance"])
def test_commands_print_no_lines_of_lightning(small_config, command, tmp_path):
    options = ["--optimizer", "SGD"] if command == "train" else []
    done = subprocess.run(
        [sys.executable, "-m", "pts_scott", command, str(small_config), *options],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0
    for word in ("Tip", "💡", "litlogger", "litmodels", "GPU", "TPU", "Trainer"):
        assert word not in done.stdout + done.stderr


def test_data_lists_the_datasets_and_describes_one(small_config, capsys):
    assert main(["data"]) == 0
    listed = capsys.readouterr().out
    for name in ("exchange_rate", "traffic", "electricity", "synthetic"):
        assert name in listed
    waves = str(small_config.parent / "waves.txt")
    assert main(["data", waves, "--start", "2024-01-01", "--freq", "h"]) == 1
    assert "steps" in capsys.readouterr().err  # 300 hours are too short for 72 + 24
    options = ["--context_length", "12", "--prediction_length", "4"]
    assert main(["data", waves, "--start", "2024-01-01", "--freq", "h", *options]) == 0
    assert "3 series" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "no command 'trian'. Did you mean 'train'?"),
        (["train"], "a config is missing: pts-scott train CONFIG"),
        (["train", "--seed", "1", "CONFIG"], "missing; it comes before the options"),
        (["train", "none.yaml"], "there is no file 'none.yaml'"),
        (["train", "CONFIG"], "several optimizers, choose one: SGD, S-Adam"),
        (["train", "CONFIG", "--optimizer", "SCot"], "no optimizer 'SCot'"),
        (["train", "CONFIG", "CONFIG"], "2 configs, expected 1"),
        (["bench", "CONFIG", "--outptu", "x"], "no option --outptu"),
        (["bench", "CONFIG", "--time_budget", "0"], "expected a number greater than 0"),
        (["bench", "CONFIG", "--workers", "two"], "workers"),
        (["bench", "CONFIG", "--seeds", "0,1"], "Expected a list, as in [1,2]."),
        (
            ["bench", "CONFIG", "--optimizers.SGDD.learning_rate", "1"],
            "the config has no optimizer 'SGDD'. Did you mean 'SGD'?",
        ),
        (["bench", "CONFIG", "--workers", "0"], "workers=0"),
        (["bench", "CONFIG", "--data.name", "exchange_rat"], "exchange_rate"),
        (["variance", "CONFIG", "--variance.optimizer", "SGD"], "with an anchor"),
        (["diagnose", "CONFIG", "--steps", "0"], "steps=0: expected a whole number"),
        (["diagnose", "CONFIG", "--widnows", "99"], "Did you mean 'windows'?"),
        (["diagnose", "CONFIG", "--windows", "3"], "windows=3: expected a whole number"),
        (["diagnose", "CONFIG", "--seed", "-1"], "seed=-1: expected a whole number"),
        (["train", "CONFIG", "--optimizer", "SGD", "--seed", "-1"], "seed=-1: expected"),
        (["data", "x", "--frq", "h"], "frq"),
        (["report", "nowhere"], "nowhere holds no runs"),
    ],
)
def test_mistake_prints_one_line_and_returns_1(small_config, arguments, message, capsys):
    arguments = [str(small_config) if a == "CONFIG" else a for a in arguments]
    assert main(arguments) == 1
    out, err = capsys.readouterr()
    assert err.splitlines()[-1].startswith("error: ")
    assert message in err
    assert out == ""
    assert "Traceback" not in err
    assert not Path("results").exists()


@pytest.mark.parametrize("existing", [False, True])
def test_interrupted_training_leaves_no_folder(small_config, existing, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    kept = Path("results/train/other")
    if existing:
        kept.mkdir(parents=True)
    monkeypatch.setattr("pts_scott.experiments.train.perform", interrupt)
    assert main(["train", str(small_config), "--optimizer", "SGD"]) == 130
    assert not Path("results/train/small").exists()
    assert kept.exists() == Path("results").exists() == existing


@pytest.mark.parametrize(
    ("line", "number", "message"),
    [
        ("1,2", 5, "line 5"),
        ("1,2,3,4", 7, "line 7"),
        ("1,two,3", 9, "two"),
    ],
)
def test_error_names_a_malformed_line_of_a_file(
    small_config, line, number, message, capsys
):
    path = small_config.parent / "waves.txt"
    lines = path.read_text().splitlines()
    lines[number - 1] = line
    path.write_text("\n".join(lines) + "\n")
    assert main(["bench", str(small_config)]) == 1
    assert message in capsys.readouterr().err


def test_error_for_a_constant_column_names_the_options(small_config, capsys):
    path = small_config.parent / "waves.txt"
    path.write_text("".join(f"{x},7\n" for x in range(300)))
    assert main(["bench", str(small_config)]) == 1
    err = capsys.readouterr().err
    assert "drop" in err
    assert "keep" in err
    options = ["--data.constant", "drop", "--samplers", "false", "--seeds", "[0]"]
    assert main(["bench", str(small_config), *options]) == 0


def test_diverged_run_is_kept_and_reported(small_config, capsys):
    options = ["--optimizers.SGD.learning_rate", "1e7", "--gradient_budget", "20000"]
    assert main(["train", str(small_config), "--optimizer", "SGD", *options]) == 1
    err = capsys.readouterr().err
    assert "training diverged" in err
    assert "--optimizers.SGD.learning_rate 1e+06" in err
    assert Path("results/train/small/runs/SGD-seed0/history.csv").exists()


@pytest.mark.slow
def test_train_does_not_overwrite_the_model_of_another_config(small_config, capsys):
    command = ["train", str(small_config), "--optimizer", "SGD"]
    assert main(command) == 0
    assert main([*command, "--optimizers.SGD.learning_rate", "0.5"]) == 1
    assert "learning_rate is 0.01 there and 0.5 here" in capsys.readouterr().err
    assert Path("results/train/small/runs/SGD-seed0/predictor").is_dir()


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent as a signal")
def test_ctrl_c_keeps_finished_runs(small_config, tmp_path):
    options = ["--gradient_budget", "null", "--time_budget", "1.5", "--samplers", "false"]
    command = [sys.executable, "-m", "pts_scott", "bench", str(small_config), *options]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=tmp_path,
        # Processes started in the background, as these tests may be, ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    done = tmp_path / "results" / "bench" / "small" / "runs"
    deadline = time.monotonic() + 120
    while not list(done.glob("*/run.json")) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)  # during the second run
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Everything finished so far is kept" in err
    assert "Traceback" not in err
    kept = len(list(done.glob("*/run.json")))
    assert 1 <= kept < 4
    assert (tmp_path / "results" / "bench" / "report.html").exists()
    again = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert again.returncode == 0
    assert f"{kept} of them already on disk" in again.stderr
