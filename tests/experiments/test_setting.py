"""A setting: disjoint windows, and arguments checked before training."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from pts_scott.errors import ConfigError
from pts_scott.experiments.config_files import load_experiment
from pts_scott.experiments.setting import Setting


@pytest.mark.parametrize("tuning", [False, True])
def test_training_and_held_out_windows_do_not_overlap(small_config, tuning):
    setting = Setting(load_experiment(small_config), tuning=tuning)
    split = setting.split

    def span(windows, first_step):
        timeline = windows.series.timeline
        _, rows = windows.rows(np.arange(len(windows)))
        return timeline.moments[rows.min() + first_step], timeline.moments[rows.max()]

    begin, _ = span(setting.held_out, 0)
    hour = pd.Timedelta("1h")
    _, last_start = span(setting.training, 0)
    last_trained = last_start + 3 * hour  # the prediction range has four hours
    assert last_trained < begin
    if tuning:
        assert begin == split.tune_begin
        _, last = span(setting.held_out, 0)
        assert last + 3 * hour < split.train_end
    else:
        assert begin - 12 * hour == split.train_end  # its context is unseen as well


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model.arguments", "{freq: D}"], "the data section defines"),
        (["--model.arguments", "{context: padded}"], "complete contexts"),
        (["--model.arguments", "{scalng: true}"], "Did you mean 'scaling'"),
        (["--optimizers.S-Adam.betas", "[0.9, 1.5]"], "less than 1"),
        (["--tune.betas", "[1.5]"], "less than 1"),
        (["--seeds", "[-1]"], "seeds=-1"),
        (["--variance.sample", "1"], "variance.sample=1"),
        (["--variance.gradients", "0"], "variance.gradients=0"),
        (
            ["--optimizers.SGD.betas", "[0.9, 0.9]"],
            "optimizers 'adam' and 'adamw'",
        ),
        (["--optimizers.SGD.gamma", "2"], "gamma=2.0: expected less than 1"),
    ],
)
def test_invalid_arguments_raise_before_training(small_config, options, message):
    with pytest.raises((ConfigError, TypeError, ValueError), match=message):
        Setting(load_experiment(small_config, options))


def test_betas_are_passed_to_adam(small_config):
    experiment = load_experiment(
        small_config, ["--optimizers.S-Adam.betas", "[0.5, 0.75]"]
    )
    trainer = Setting(experiment).trainer("S-Adam", seed=0)
    optimizer = trainer._make_optimizer([torch.nn.Parameter(torch.zeros(1))])
    assert optimizer.param_groups[0]["betas"] == (0.5, 0.75)
    assert optimizer.param_groups[0]["weight_decay"] == 1e-5


def test_optimizers_may_have_their_own_sampler(small_config):
    options = ["method", "stratifier", "allocation", "batch_size", "replacement"]
    values = ["stratified", "series()", "equal", "6", "false"]
    given = [
        part
        for name, value in zip(options, values, strict=True)
        for part in (f"--optimizers.SGD.{name}", value)
    ]
    setting = Setting(load_experiment(small_config, given))
    own, other = setting.trainer("SGD", 0), setting.trainer("S-Adam", 0)
    assert own.hyperparameters.allocation == "equal"
    assert own.hyperparameters.replacement is False
    assert (own.batch_size, other.batch_size) == (6, 4)
    assert str(own.stratifier) == "Stratifier.series()"
    assert str(other.stratifier) == "Stratifier.calendar('hour')"
    assert other.hyperparameters.allocation is None
    assert other.hyperparameters.replacement is True


def test_experiments_return_the_last_parameters(small_config):
    setting = Setting(load_experiment(small_config))
    assert setting.trainer("SGD", 0).output == "last"


def test_all_or_no_optimizers_of_a_setting_are_compiled(small_config):
    options = ["--compile", "auto", "--batch_size", "1", "--gradient_budget", "15000"]
    setting = Setting(load_experiment(small_config, options))
    assert {setting.trainer(n, 0).compile for n in ("SGD", "S-Adam")} == {False}
    options[-1] = "30000"
    setting = Setting(load_experiment(small_config, options))
    assert {setting.trainer(n, 0).compile for n in ("SGD", "S-Adam")} == {"auto"}
    options += ["--optimizers.SGD.batch_size", "2"]
    setting = Setting(load_experiment(small_config, options))
    assert {setting.trainer(n, 0).compile for n in ("SGD", "S-Adam")} == {False}
