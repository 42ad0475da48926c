"""The shipped configs are complete experiments, with the paper's values."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from helpers.experiments import replace_in_config

from pts_scott.errors import ConfigError
from pts_scott.experiments.config import GAMMAS, LEARNING_RATES
from pts_scott.experiments.config_checks import check_experiment
from pts_scott.experiments.config_files import compose, load_experiment
from pts_scott.experiments.run_files import run_folder

CONFIGS = Path(__file__).parents[2] / "configs"
SHIPPED = sorted((*CONFIGS.glob("paper/*.yaml"), *CONFIGS.glob("small-cpu/*.yaml")))
SAMPLING = sorted(CONFIGS.glob("sampling/*.yaml"))
STRATA = {"exchange_rate": 32, "synthetic": 16, "traffic-21x17544": 49}
SEVEN = ["SGD", "SCSG", "SCott", "Adam", "S-Adam", "Adagrad", "S-Adagrad"]

# The paper's table: step sizes in the order of SEVEN, then γ of SCott, S-Adam and
# S-Adagrad; Adam and S-Adam on N-BEATS and Electricity as corrected by its authors.
PAPER = {
    "mlp-exchange_rate": (5e-3, 5e-2, 5e-2, 5e-3, 5e-3, 2.5e-2, 2.5e-2, 0.125, 0.1, 0.1),
    "mlp-traffic": (2.5e-2, 2.5e-2, 2.5e-2, 5e-3, 5e-3, 5e-3, 5e-3, 0.125, 0.125, 0.125),
    "mlp-electricity": (
        *(2.5e-2, 2.5e-2, 2.5e-2, 5e-3, 2.5e-3, 5e-3, 2.5e-3),
        *(0.125, 0.125, 0.125),
    ),
    "nbeats-exchange_rate": (*[1e-3] * 7, 0.1, 0.1, 0.1),
    "nbeats-traffic": (1e-4, 1e-4, 2.5e-3, 1e-4, 1e-4, 1e-4, 1e-4, 0.125, 0.125, 0.125),
    "nbeats-electricity": (
        *(5e-3, 1e-2, 1e-2, 1e-3, 1e-3, 1e-2, 1e-2),
        *(0.125, 0.125, 0.125),
    ),
}

NAMES = [
    *("..", ".", "../../x", "/etc/x", "a/b", "a\\\\b", "~", "C:\\\\x", "a\\0b", "-", ""),
    *('a<>:\\"|?*b', "CON", "nul.txt", " x ", "x.", "\\x1b[2J", "\\u202ex", "\\n"),
]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_shipped_config_is_a_complete_experiment(path):
    experiment = load_experiment(path)
    assert list(experiment.optimizers)[:7] == SEVEN
    lengths = experiment.data.context_length, experiment.data.prediction_length
    assert lengths == ((8, 1) if "exchange" in path.stem else (72, 24))
    assert experiment.batch_size == 1
    if path.parent.name == "small-cpu":
        assert experiment.time_budget <= 20
        assert experiment.compile is False
        assert [n for n in experiment.optimizers if n.startswith("stratified")]
    else:
        assert experiment.evaluation_windows is None
        assert experiment.time_budget == (10800 if "nbeats" in path.stem else 1800)


@pytest.mark.parametrize("name", PAPER)
def test_step_sizes_and_gamma_are_the_papers(name):
    optimizers = load_experiment(CONFIGS / "paper" / f"{name}.yaml").optimizers
    rates = [optimizers[o].learning_rate for o in SEVEN]
    gammas = [optimizers[o].gamma for o in ("SCott", "S-Adam", "S-Adagrad")]
    assert (*rates, *gammas) == PAPER[name]
    assert {o.weight_decay for o in optimizers.values()} == {1e-5}
    assert optimizers["SCSG"].gamma is None


def test_small_cpu_config_differs_from_the_papers_only_as_documented():
    paper = compose(CONFIGS / "paper" / "nbeats-traffic.yaml")
    small = compose(CONFIGS / "small-cpu" / "nbeats-traffic-21x17544.yaml")
    assert small["data"]["name"] == "traffic-21x17544"
    assert small["model"]["label"] == "N-BEATS-small"
    assert small["model"]["arguments"]["num_stacks"] < 30
    for name in SEVEN:
        assert small["optimizers"][name] == paper["optimizers"][name]


@pytest.mark.parametrize("path", SAMPLING, ids=lambda p: p.stem)
def test_sampling_configs_compare_auto_with_uniform_mini_batches(path):
    experiment = load_experiment(path)
    plain, auto = experiment.optimizers.values()
    assert (plain.method, auto.method) == ("plain", "auto")
    assert dataclasses.replace(auto, method="plain") == plain
    assert experiment.compile is True
    lengths = experiment.data.context_length, experiment.data.prediction_length
    assert lengths == ((8, 1) if "exchange" in path.stem else (72, 24))


def test_readme_lists_every_folder_and_profile():
    text = (CONFIGS / "README.md").read_text()
    for folder in CONFIGS.iterdir():
        if folder.is_dir():
            assert f"| `{folder.name}/` |" in text
    for profile in (CONFIGS / "profiles").glob("*.yaml"):
        assert f"`{profile.stem}`" in text


@pytest.mark.parametrize("data", ["exchange_rate", "synthetic", "traffic-21x17544"])
def test_stratified_steps_have_one_window_per_stratum(data):
    path = next(CONFIGS.glob(f"small-cpu/*-{data}.yaml"))
    experiment = load_experiment(path)
    stratified = [o for o in experiment.optimizers.values() if o.method == "stratified"]
    assert {o.allocation for o in stratified} == {"equal"}
    assert {o.batch_size for o in stratified} == {STRATA[data]}


def test_default_grids_are_the_papers(small_config):
    experiment = load_experiment(CONFIGS / "paper" / "mlp-traffic.yaml")
    assert experiment.tune.learning_rate == list(LEARNING_RATES)
    assert len(LEARNING_RATES) == 10
    assert experiment.tune.gamma == list(GAMMAS) == [0.1, 0.125, 0.15, 0.2, 0.4, 0.8]


@pytest.mark.parametrize("path", SHIPPED[:3], ids=lambda p: p.stem)
def test_dumped_config_gives_the_same_experiment(path, tmp_path):
    experiment = load_experiment(path)
    (tmp_path / "resolved.yaml").write_text(experiment.dump())
    assert load_experiment(tmp_path / "resolved.yaml") == experiment


def test_two_optimizers_cannot_share_a_folder(small_config):
    experiment = load_experiment(small_config)
    sgd = experiment.optimizers["SGD"]
    twins = dataclasses.replace(experiment, optimizers={"a b": sgd, "a-b": sgd})
    with pytest.raises(ConfigError, match="share a folder"):
        check_experiment(twins)


def test_name_of_a_setting_is_a_valid_folder_name(small_config):
    experiment = load_experiment(small_config)
    assert experiment.setting == "small"
    unnamed = dataclasses.replace(experiment, name=None)
    assert unnamed.setting == "var-waves.txt-M4"
    assert dataclasses.replace(experiment, name="a/../b c").setting == "a-..-b-c"


# -- names that become folders --------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_no_name_leads_out_of_the_results(small_config, name, tmp_path):
    path = replace_in_config(small_config, "name: small", f'name: "{name}"')
    path = replace_in_config(path, "  SGD:", f'  "{name}":')
    experiment = load_experiment(path)
    folder = tmp_path / "results" / experiment.setting
    runs = [run_folder(folder, optimizer, 0) for optimizer in experiment.optimizers]
    assert folder.resolve().parent == folder.parent == tmp_path / "results"
    for run in runs:
        assert run.resolve().parent == folder / "runs"
    for made in (folder.name, *(run.name for run in runs)):
        assert re.fullmatch(r"[\w.=+-]+", made)
        assert not re.match(r"(?i)(con|nul)(\.|$)", made)
        assert made.strip(".")


def test_name_of_a_data_file_does_not_lead_out_of_the_results(small_config):
    experiment = load_experiment(
        replace_in_config(small_config, "name: small", "name: null")
    )
    assert experiment.setting == "var-waves.txt-M4"
    for name in ("../..", "/", "a/../..", "\0"):
        experiment.data.name = name
        assert re.fullmatch(r"[\w.-]+", experiment.setting)
        assert experiment.setting.strip(".")


def test_seed_cannot_be_a_path(small_config, tmp_path):
    with pytest.raises(ConfigError, match="seeds"):
        load_experiment(
            replace_in_config(small_config, "seeds: [0, 1]", "seeds: ['../x']")
        )
    assert run_folder(tmp_path, "SGD", "/../../x").parent == tmp_path / "runs"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: small", f"name: {'é' * 150}"),
        ("  SGD:", f"  {'a' * 300}:"),
        ("seeds: [0, 1]", f"seeds: [1{'0' * 300}]"),
    ],
)
def test_too_long_folder_names_raise(small_config, old, new):
    with pytest.raises(ConfigError, match="too long for a folder name") as caught:
        load_experiment(replace_in_config(small_config, old, new))
    assert len(str(caught.value)) < 500


def test_unknown_method_is_reported_with_the_known_ones(small_config):
    with pytest.raises(ConfigError, match=r"optimizers\.SGD\.method='plian'.*plain"):
        load_experiment(small_config, ["--optimizers.SGD.method", "plian"])
