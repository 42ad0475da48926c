"""Configs are composed and overridden, and mistakes are named before anything runs."""

from __future__ import annotations

import pytest
import yaml
from helpers.experiments import replace_in_config

from pts_scott.errors import ConfigError
from pts_scott.experiments.config_files import compose, load_experiment, plain_message

PLAIN = {"method": "plain", "optimizer": "sgd"}


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


def test_later_values_win_and_a_file_replaces_the_whole_section(tmp_path):
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
        ({"time_budget": 0}, "time_budget=0.0: expected a number greater than 0"),
        ({"gradient_budget": 0}, "gradient_budget=0: expected a whole number"),
        ({"gradient_budget": None}, "both null"),
        ({"batch_size": "many"}, "batch_size: Expected a int. Got value: many"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"seeds": []}, "seeds="),
        ({"seeds": [1, 1]}, "each only once"),
        ({"model": {"name": "transformer"}}, "model.name"),
        ({"data": {"stratifier": "weekly()"}}, "no policy 'weekly'"),
        ({"variance": {"stratifiers": ["x"]}}, "expected a policy"),
        ({"optimizers": {"A": {**PLAIN, "batch_size": 0}}}, "optimizers.A.batch_size=0"),
        (
            {"optimizers": {"A": {**PLAIN, "stratifier": "weekly()"}}},
            "no policy 'weekly'",
        ),
        (
            {"optimizers": {"A": {**PLAIN, "allocation": "even"}}},
            "allocation: expected one of 'proportional', 'equal', 'spread', null; given",
        ),
        ({"optimizers": {"s-adam": {}, "S Adam": {}}}, "method"),
    ],
)
def test_errors_name_the_mistake_and_the_nearest_key(small_config, change, message):
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
        (["--model.name", "nbeast"], "no such model. Did you mean 'nbeats'?"),
        (["--model", "nbeast"], "no such model. Did you mean 'nbeats'?"),
        (["--zzz", "3"], "no option --zzz. --help lists all options."),
    ],
)
def test_errors_name_the_nearest_option(small_config, options, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        load_experiment(small_config, options)


def test_parser_messages_about_unions_are_shortened():
    message = (
        'Parser key "time_budget":\n'
        "  Does not validate against any of the Union subtypes\n"
        "  Subtypes: [float, NoneType]\n  Errors:\n    - Expected a float\n"
        "    - Expected a NoneType\n  Given value type: str\n  Given value: abc"
    )
    expected = "time_budget: expected one of float, null; given: abc"
    assert plain_message(ValueError(message)) == expected


def test_errors_name_unreadable_files(tmp_path):
    with pytest.raises(ConfigError, match="there is no file .*none.yaml"):
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


def test_data_file_is_found_beside_the_config(small_config, tmp_path, monkeypatch):
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
def test_config_that_would_run_code_raises(small_config, tmp_path, tag):
    ran = tmp_path / "ran"
    path = replace_in_config(small_config, "name: small", f"name: {tag.format(ran=ran)}")
    with pytest.raises(ConfigError, match="small.yaml is not YAML.*tag"):
        load_experiment(path)
    assert not ran.exists()


@pytest.mark.parametrize("quotes", ["{}", "'{}'", "[{}]", "{{b: {}}}"])
def test_class_in_a_config_is_neither_imported_nor_instantiated(
    small_config, tmp_path, monkeypatch, quotes
):
    imported, made = tmp_path / "imported", tmp_path / "made"
    (tmp_path / "my_class.py").write_text(
        f"from pathlib import Path\nPath({str(imported)!r}).touch()\n"
        "class Mine:\n  def __init__(self, path: str):\n    Path(path).touch()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    given = quotes.format(f"{{class_path: my_class.Mine, init_args: {{path: {made}}}}}")
    path = replace_in_config(
        small_config, "name: var", f"name: var, arguments: {{scaling: {given}}}"
    )
    argument = load_experiment(path).model.arguments["scaling"]
    assert isinstance(argument, str | dict | list)  # which the estimator rejects
    load_experiment(path, ["--model.arguments.scaling", given])
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
def test_unbounded_config_raises(small_config, arguments):
    path = replace_in_config(
        small_config, "name: var", f"name: var, arguments: {arguments}"
    )
    with pytest.raises(ConfigError, match="more than 100000 values|is not YAML"):
        load_experiment(path)


def test_bounded_references_are_allowed(small_config):
    path = replace_in_config(
        small_config, "learning_rate: 1e-2}", "learning_rate: &a 1e-2}"
    )
    path = replace_in_config(
        path, "learning_rate: 1e-2, gamma", "learning_rate: *a, gamma"
    )
    optimizers = load_experiment(path).optimizers
    assert optimizers["SGD"].learning_rate == optimizers["S-Adam"].learning_rate == 1e-2


@pytest.mark.parametrize("base", ['"a\\0b"', "/dev/null", ".", "5", "{a: 1}", "[[1]]"])
@pytest.mark.parametrize("key", ["base", "tune"])
def test_base_that_is_not_a_config_file_raises(small_config, key, base):
    text = small_config.read_text().replace("tune:", f"{key}: {base}\n#")
    small_config.write_text(text)
    # Reading an endless device such as /dev/zero would never return.
    words = "a device" if "null" in base else "small|cannot be read"
    with pytest.raises(ConfigError, match=words):
        load_experiment(small_config)
