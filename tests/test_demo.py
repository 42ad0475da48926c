"""The demo: SCott against SGD, a table, a plot."""

from __future__ import annotations

import pandas as pd

from pts_scott import demo


def test_demo_prints_a_table_and_writes_plot_and_histories(tmp_path, capsys):
    options = ["--seconds", "1", "--repetitions", "30", "--output", str(tmp_path / "out")]
    assert demo.main(options) == 0
    printed = capsys.readouterr().out
    assert "16 strata" in printed
    for word in ("SGD", "SCott", "gradients", "seconds", "steps"):
        assert word in printed
    assert (tmp_path / "out" / "loss.png").stat().st_size > 10_000
    for name in ("sgd", "scott"):
        history = pd.read_csv(tmp_path / "out" / f"{name}.csv")
        assert 0.8 < history["seconds"].iloc[-1] < 2.0


def test_invalid_input_prints_an_error_and_returns_1(tmp_path, capsys):
    assert demo.main(["--seconds", "0"]) == 1
    assert "--seconds" in capsys.readouterr().err
    assert demo.main(["--seconds", "1", "--repetitions", "0"]) == 1
    assert "repetitions=0" in capsys.readouterr().err


def test_unwritable_folder_is_reported_before_training(tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert demo.main(["--seconds", "30", "--output", str(blocked / "out")]) == 1
    assert "error:" in capsys.readouterr().err
