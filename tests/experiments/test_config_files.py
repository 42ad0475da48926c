"""Configs are composed, checked before anything runs, and written back whole."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from pts_scott.errors import ConfigError
from pts_scott.experiments.config import GAMMAS, LEARNING_RATES
from pts_scott.experiments.config_files import compose, load_experiment
from pts_scott.experiments.runs import run_folder

CONFIGS = Path(__file__).parents[2] / "configs"
SHIPPED = sorted((*CONFIGS.glob("paper/*.yaml"), *CONFIGS.glob("small-cpu/*.yaml")))
SEVEN = ["SGD", "SCSG", "SCott", "Adam", "S-Adam", "Adagrad", "S-Adagrad"]

# Step sizes in the order of SEVEN, then γ of SCott, S-Adam and S-Adagrad: the paper's
# table, with Adam and S-Adam on N-BEATS and Electricity as corrected.
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


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_shipped_config_is_a_whole_experiment(path):
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


def test_a_small_cpu_config_is_the_papers_with_named_differences():
    paper = compose(CONFIGS / "paper" / "nbeats-traffic.yaml")
    small = compose(CONFIGS / "small-cpu" / "nbeats-traffic-21x17544.yaml")
    assert small["data"]["name"] == "traffic-21x17544"
    assert small["model"]["label"] == "N-BEATS-small"
    assert small["model"]["arguments"]["num_stacks"] < 30
    for name in SEVEN:
        assert small["optimizers"][name] == paper["optimizers"][name]


def test_the_default_grids_are_the_papers(small_config):
    experiment = load_experiment(CONFIGS / "paper" / "mlp-traffic.yaml")
    assert experiment.tune.learning_rate == list(LEARNING_RATES)
    assert len(LEARNING_RATES) == 10
    assert experiment.tune.gamma == list(GAMMAS) == [0.1, 0.125, 0.15, 0.2, 0.4, 0.8]


@pytest.mark.parametrize("path", SHIPPED[:3], ids=lambda p: p.stem)
def test_a_dumped_config_gives_the_same_experiment(path, tmp_path):
    experiment = load_experiment(path)
    (tmp_path / "resolved.yaml").write_text(experiment.dump())
    assert load_experiment(tmp_path / "resolved.yaml") == experiment


def test_options_override_values_at_any_depth(small_config):
    experiment = load_experiment(
        small_config,
        [
            "--gradient_budget=99",
            "--data.context_length",
            "7",
            "--optimizers.S-Adam.learning_rate",
            "0.5",
            "--seeds",
            "[3, 4]",
        ],
    )
    assert experiment.gradient_budget == 99
    assert experiment.data.context_length == 7
    assert experiment.optimizers["S-Adam"].learning_rate == 0.5
    assert experiment.optimizers["S-Adam"].gamma == 0.1
    assert experiment.optimizers["SGD"].learning_rate == 1e-2
    assert experiment.seeds == [3, 4]


def test_what_comes_later_wins_and_a_file_replaces_a_part_whole(tmp_path):
    (tmp_path / "a.yaml").write_text("batch_size: 1\ndata: {name: x, stride: 5}\n")
    (tmp_path / "b.yaml").write_text("batch_size: 2\ndata: {name: y}\n")
    (tmp_path / "d.yaml").write_text("name: z\n")
    (tmp_path / "c.yaml").write_text("base: [a.yaml, b.yaml]\ndata: {freq: h}\n")
    assert compose(tmp_path / "c.yaml") == {
        "batch_size": 2,
        "data": {"name": "y", "stride": 5, "freq": "h"},
    }
    (tmp_path / "c.yaml").write_text("base: a.yaml\ndata: d.yaml\n")
    assert compose(tmp_path / "c.yaml") == {"batch_size": 1, "data": {"name": "z"}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time_budgt": 3}, "no key 'time_budgt'. Did you mean 'time_budget'"),
        ({"data": {"nme": "x"}}, "no key 'data.nme'. Did you mean 'name'"),
        ({"optimizers": {"SGD": {"learning_rte": 1}}}, "Did you mean 'learning_rate'"),
        ({"optimizers": {"SGD": 3}}, "optimizers.SGD=3: expected keys with values"),
        ({"optimizers": {}}, "optimizers is empty"),
        ({"time_budget": 0}, "time_budget=0.0: expected a number of more than 0"),
        ({"gradient_budget": 0}, "gradient_budget=0: expected a whole number"),
        ({"gradient_budget": None}, "both null"),
        ({"batch_size": "many"}, "batch_size: Expected a int. Got value: many"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"seeds": []}, "seeds="),
        ({"seeds": [1, 1]}, "each once"),
        ({"model": {"name": "transformer"}}, "model.name"),
        ({"data": {"stratifier": "weekly()"}}, "no policy 'weekly'"),
        ({"variance": {"stratifiers": ["x"]}}, "expected a policy"),
        ({"optimizers": {"s-adam": {}, "S Adam": {}}}, "method"),
    ],
)
def test_mistakes_are_named_with_what_is_meant(small_config, change, message):
    tree = yaml.safe_load(small_config.read_text())
    for key, value in change.items():
        nested = isinstance(value, dict) and value and key != "optimizers"
        tree[key] = {**tree[key], **value} if nested else value
    small_config.write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigError) as caught:
        load_experiment(small_config)
    assert message in str(caught.value)
    assert "small.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--time_budgt", "3"], "no option --time_budgt. Did you mean 'time_budget'"),
        (["--data.contxt_length", "3"], "Did you mean 'data.context_length'"),
        (["--optimizers.SGD.learning_rte", "3"], "Did you mean 'learning_rate'"),
        (["--optimizers.SGD.learning_rate", "x"], "learning_rate: Expected a float"),
    ],
)
def test_mistaken_options_are_named_too(small_config, options, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        load_experiment(small_config, options)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(ConfigError, match="none.yaml cannot be read: No such file"):
        load_experiment(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("a: [1\nb: 2")
    with pytest.raises(ConfigError, match="bad.yaml is not YAML"):
        load_experiment(tmp_path / "bad.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ConfigError, match="list.yaml is not a config"):
        load_experiment(tmp_path / "list.yaml")
    (tmp_path / "loop.yaml").write_text("base: loop.yaml\n")
    with pytest.raises(ConfigError, match="builds on itself"):
        load_experiment(tmp_path / "loop.yaml")


def test_two_optimizers_cannot_share_a_folder(small_config):
    experiment = load_experiment(small_config)
    sgd = experiment.optimizers["SGD"]
    twins = dataclasses.replace(experiment, optimizers={"a b": sgd, "a-b": sgd})
    with pytest.raises(ConfigError, match="one folder"):
        twins.check()


def test_the_name_of_a_setting_is_good_for_a_folder(small_config):
    experiment = load_experiment(small_config)
    assert experiment.setting == "small"
    unnamed = dataclasses.replace(experiment, name=None)
    assert unnamed.setting == "var-waves.txt-M4"
    assert dataclasses.replace(experiment, name="a/../b c").setting == "a-..-b-c"


def test_a_file_of_series_is_looked_for_beside_the_config(
    small_config, tmp_path, monkeypatch
):
    text = small_config.read_text().replace(str(tmp_path / "waves.txt"), "waves.txt")
    small_config.write_text(text)
    monkeypatch.chdir("/")
    assert load_experiment(small_config).data.name == str(tmp_path / "waves.txt")
    (tmp_path / "data.yaml").write_text("{name: waves.txt, start: 2024-01-01, freq: h}")
    tree = {"base": "small.yaml", "data": "data.yaml"}
    (tmp_path / "composed.yaml").write_text(yaml.safe_dump(tree))
    composed = load_experiment(tmp_path / "composed.yaml")
    assert composed.data.name == str(tmp_path / "waves.txt")


# -- hostile configs ------------------------------------------------------------------


def changed(small_config: Path, old: str, new: str) -> Path:
    text = small_config.read_text()
    assert old in text
    small_config.write_text(text.replace(old, new, 1))
    return small_config


@pytest.mark.parametrize(
    "tag",
    [
        "!!python/object/apply:os.system ['touch {ran}']",
        "!!python/object/new:os.system ['touch {ran}']",
        "!!python/object/apply:subprocess.Popen [[touch, {ran}]]",
        "!!python/name:os.system",
        "!!python/module:os",
    ],
)
def test_a_config_that_would_run_code_is_refused(small_config, tmp_path, tag):
    ran = tmp_path / "ran"
    path = changed(small_config, "name: small", f"name: {tag.format(ran=ran)}")
    with pytest.raises(ConfigError, match="small.yaml is not YAML.*tag"):
        load_experiment(path)
    assert not ran.exists()


@pytest.mark.parametrize("quotes", ["{}", "'{}'", "[{}]", "{{b: {}}}"])
def test_a_class_in_a_config_is_neither_imported_nor_made(
    small_config, tmp_path, monkeypatch, quotes
):
    imported, made = tmp_path / "imported", tmp_path / "made"
    (tmp_path / "my_class.py").write_text(
        f"from pathlib import Path\nPath({str(imported)!r}).touch()\n"
        "class Mine:\n  def __init__(self, path: str):\n    Path(path).touch()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    given = quotes.format(f"{{class_path: my_class.Mine, init_args: {{path: {made}}}}}")
    path = changed(small_config, "name: var", f"name: var, arguments: {{a: {given}}}")
    argument = load_experiment(path).model.arguments["a"]
    assert isinstance(argument, str | dict | list)  # which the estimator will refuse
    load_experiment(path, ["--model.arguments.c", given])
    assert not imported.exists()
    assert not made.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        "&a {x: *a}",
        "{a: &a [1,1,1,1,1,1,1,1,1,1], b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a], "
        "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b], d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c], "
        "e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]}",
        "{x: " + "[" * 3000 + "]" * 3000 + "}",
    ],
    ids=["itself", "laughs", "deep"],
)
def test_a_config_without_end_is_refused(small_config, arguments):
    path = changed(small_config, "name: var", f"name: var, arguments: {arguments}")
    with pytest.raises(ConfigError, match="more than 100000 values|is not YAML"):
        load_experiment(path)


def test_references_that_end_are_fine(small_config):
    path = changed(small_config, "learning_rate: 1e-2}", "learning_rate: &a 1e-2}")
    path = changed(path, "learning_rate: 1e-2, gamma", "learning_rate: *a, gamma")
    optimizers = load_experiment(path).optimizers
    assert optimizers["SGD"].learning_rate == optimizers["S-Adam"].learning_rate == 1e-2


@pytest.mark.parametrize("base", ['"a\\0b"', "/dev/null", ".", "5", "{a: 1}", "[[1]]"])
@pytest.mark.parametrize("key", ["base", "tune"])
def test_what_is_no_file_of_a_config_is_not_read(small_config, key, base):
    text = small_config.read_text().replace("tune:", f"{key}: {base}\n#")
    small_config.write_text(text)
    # Of a device without end, /dev/zero, reading would never come back.
    words = "a device" if "null" in base else "small|cannot be read"
    with pytest.raises(ConfigError, match=words):
        load_experiment(small_config)


# -- names that become folders --------------------------------------------------------

NAMES = [
    *("..", ".", "../../x", "/etc/x", "a/b", "a\\\\b", "~", "C:\\\\x", "a\\0b", "-", ""),
    *('a<>:\\"|?*b', "CON", "nul.txt", " x ", "x.", "\\x1b[2J", "\\u202ex", "\\n"),
]


@pytest.mark.parametrize("name", NAMES)
def test_no_name_leads_out_of_the_results(small_config, name, tmp_path):
    path = changed(small_config, "name: small", f'name: "{name}"')
    path = changed(path, "  SGD:", f'  "{name}":')
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


def test_a_file_of_data_does_not_name_a_folder_elsewhere(small_config):
    experiment = load_experiment(changed(small_config, "name: small", "name: null"))
    assert experiment.setting == "var-waves.txt-M4"
    for name in ("../..", "/", "a/../..", "\0"):
        experiment.data.name = name
        assert re.fullmatch(r"[\w.-]+", experiment.setting)
        assert experiment.setting.strip(".")


def test_a_seed_is_no_path(small_config, tmp_path):
    with pytest.raises(ConfigError, match="seeds"):
        load_experiment(changed(small_config, "seeds: [0, 1]", "seeds: ['../x']"))
    assert run_folder(tmp_path, "SGD", "/../../x").parent == tmp_path / "runs"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: small", f"name: {'é' * 150}"),
        ("  SGD:", f"  {'a' * 300}:"),
        ("seeds: [0, 1]", f"seeds: [1{'0' * 300}]"),
    ],
)
def test_names_too_long_for_a_folder_are_refused(small_config, old, new):
    with pytest.raises(ConfigError, match="too long for the name of a folder") as caught:
        load_experiment(changed(small_config, old, new))
    assert len(str(caught.value)) < 500
