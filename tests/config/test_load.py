"""Test values, defaults, precedence, origins and notices of experiment files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from detcore.config import (
    ExperimentConfig,
    ExperimentFileError,
    LoadedConfig,
    Origin,
    load_config,
    load_text,
    parse_set_flags,
    resolve_constants,
)
from detcore.environment import read_environment
from detcore.errors import ConfigError
from detcore.types import Length, Unit

HERE = Path(__file__).parent
CONSTANT = (HERE / "constant.yaml").read_text()
SEARCHER = "searcher: {name: single, metric: loss, max_length: {batches: 1}}\n"
BATCHES = "DETCORE_CONFIG__SEARCHER__MAX_LENGTH__BATCHES"


def load(name: str, **settings: Any) -> LoadedConfig:
    return load_config(HERE / name, **settings)


def load_string(text: str, **settings: Any) -> LoadedConfig:
    return load_text(text, name="exp.yaml", **settings)


def length(loaded: LoadedConfig) -> Length:
    assert loaded.config.searcher.max_length is not None
    return loaded.config.searcher.max_length


def leaves(value: Any, name: str = "") -> set[str]:
    items: dict[Any, Any] = {}
    if isinstance(value, dict):
        items = value
    elif isinstance(value, list):
        items = dict(enumerate(value))
    below = [leaves(child, f"{name}.{key}" if name else str(key)) for key, child in items.items()]
    return set().union(*below) if below else {name}


# -- values ---------------------------------------------------------------------------------------


def test_values_and_defaults() -> None:
    loaded = load("constant.yaml")
    config = loaded.config
    assert config.searcher.name == "single"
    assert length(loaded) == Length(100, Unit.BATCHES)
    assert config.hyperparameters == {"global_batch_size": 32, "learning_rate": 0.001}
    assert config.min_validation_period == Length(0, Unit.BATCHES)
    assert (config.scheduling_unit, config.max_restarts, config.records_per_epoch) == (100, 5, 0)
    assert config.checkpoint_policy == "best"
    assert config.checkpoint_storage is None
    assert config.data_ledger is False
    assert config.reproducibility.deterministic_ops is None
    assert 0 <= config.reproducibility.experiment_seed < 2**31
    assert config.resources.slots_per_trial == 1


@pytest.mark.parametrize("name", ["complete.yaml", "constant.yaml"])
def test_dumped_configuration_is_equal(name: str) -> None:
    config = load(name).config
    again = ExperimentConfig.model_validate(config.model_dump(mode="json"))
    assert again == config
    assert ExperimentConfig.model_validate(config.model_dump()) == config


def test_model_checks_rules_between_fields() -> None:
    plain = load("complete.yaml").config.model_dump(mode="json")
    plain["profiling"]["end_after_batch"] = 1
    with pytest.raises(ValidationError, match="profiling ends after batch 1"):
        ExperimentConfig.model_validate(plain)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 100000.0),
        (".5", 0.5),
        ("1_000", 1000),
        ("0x10", 16),
        ("0o10", 8),
        ("yes", "yes"),
        ("1:30", "1:30"),
        ("2026-11-21", "2026-11-21"),
        ("~", None),
        ("True", True),
        ('"1e-3"', "1e-3"),
        ("1.2.3", "1.2.3"),
        ("- 1", [1]),
        ("{on: off}", {"on": "off"}),
    ],
)
def test_yaml_scalars(text: str, value: object) -> None:
    loaded = load_string(f"{CONSTANT}data:\n  x:\n    {text}\n").config.data["x"]
    assert loaded == value
    assert type(loaded) is type(value)


def test_anchors_and_merges() -> None:
    data = load_string(
        CONSTANT + "data:\n  a: &a {x: 1, y: 2}\n  b: {<<: *a, y: 3}\n  c: *a\n"
    ).config.data
    assert data == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}, "c": {"x": 1, "y": 2}}


@pytest.mark.parametrize("ending", ["\r\n", "\r"])
def test_line_ends_and_byte_order_mark(ending: str, tmp_path: Path) -> None:
    path = tmp_path / "exp.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + CONSTANT.replace("\n", ending).encode())
    loaded = load_config(path)
    assert loaded.config.name == "line"
    assert loaded.find_origins()["name"] == Origin(source="file", line=1, column=7)


def test_null_is_the_default() -> None:
    loaded = load_string(CONSTANT + "resources:\nmax_restarts: null\nlabels:\n")
    assert loaded.config.max_restarts == 5
    assert loaded.config.resources.slots_per_trial == 1
    assert loaded.find_origins()["max_restarts"].source == "default"


@pytest.mark.parametrize(
    "storage",
    [
        "/var/runs",
        "s3://bucket/prefix",
        "{type: shared_fs, host_path: /srv, storage_path: a/b}",
        "{type: shared_fs, host_path: /srv, storage_path: /srv/a}",
        "{type: directory, container_path: /srv}",
        "{type: gcs, bucket: bucket, prefix: fo..o}",
    ],
)
def test_valid_storages(storage: str, models: dict[str, Any]) -> None:
    config = load_string(CONSTANT + f"checkpoint_storage: {storage}\n", models=models).config
    assert ExperimentConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        ("runs", "expected an absolute path or a URL"),
        ("3", "expected a string or a mapping, got the integer 3"),
        ("{type: shared_fs, host_path: srv}", "expected an absolute path"),
        ("{type: shared_fs, host_path: /srv, storage_path: ../x}", "leads out of host_path"),
        ("{type: shared_fs, host_path: /srv, storage_path: /srvx}", "leads out of host_path"),
        ("{type: azure, container: c}", "Give a URL: checkpoint_storage: abfs://CONTAINER"),
        ("{bucket: b}", "'type' is missing in 'checkpoint_storage'"),
        ("{type: 3}", "expected the name of a storage type, got the integer 3"),
    ],
)
def test_invalid_storages(storage: str, message: str, models: dict[str, Any]) -> None:
    with pytest.raises(ExperimentFileError) as caught:
        load_string(CONSTANT + f"checkpoint_storage: {storage}\n", models=models)
    assert message in str(caught.value)
    assert len(caught.value.diagnostics) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("max_length: {records: 100}", "a length in records needs hyperparameters.global_batch"),
        ("max_length: {epochs: 1}\nrecords_per_epoch: 5", "a length in epochs needs"),
        ("max_length: {epochs: 1}", None),
        ("max_length: {batches: 1}\nmin_validation_period: {records: 0}", None),
        ("max_length: {batches: 1}\nmin_validation_period: {records: 8}", "a length in records"),
    ],
)
def test_lengths_that_require_batch_size(change: str, message: str | None) -> None:
    text = CONSTANT.replace("  global_batch_size: 32\n", "")
    text = text.replace("max_length:\n    batches: 100", change)
    if message is None:
        assert load_string(text).config.name == "line"
        return
    with pytest.raises(ExperimentFileError, match=message):
        load_string(text)


# -- precedence and origins -----------------------------------------------------------------------


def test_precedence_of_sources() -> None:
    name = "searcher.max_length.batches"
    environment = {BATCHES: "20"}
    both = load("constant.yaml", overrides={name: "30"}, environment=environment)
    assert length(both).count == 30
    assert both.find_origins()[name] == Origin(source="flag", line=1, column=29)
    variable = load("constant.yaml", environment=environment)
    assert length(variable).count == 20
    assert variable.find_origins()[name] == Origin(source="environment", line=1, column=47)
    file = load("constant.yaml")
    assert length(file).count == 100
    assert file.find_origins()[name] == Origin(source="file", line=10, column=14)
    assert file.find_origins()["scheduling_unit"] == Origin(source="default")


@pytest.mark.parametrize("name", ["complete.yaml", "constant.yaml"])
def test_origins_cover_every_leaf(name: str) -> None:
    loaded = load(name, overrides={"labels": ["a", "b"], "data.deep.x": 1})
    assert set(loaded.find_origins()) == leaves(loaded.config.model_dump(mode="json"))
    assert loaded.find_origins()["labels.1"].source == "flag"
    assert loaded.find_origins()["data.deep.x"].source == "flag"


def test_origins_point_at_the_values() -> None:
    loaded = load("complete.yaml")
    lines = loaded.text.splitlines()
    plain = loaded.config.model_dump(mode="json")
    for name, origin in loaded.find_origins().items():
        if origin.source != "file":
            continue
        assert origin.line is not None
        assert origin.column is not None
        value: Any = plain
        for key in name.split("."):
            value = value[int(key)] if isinstance(value, list) else value[key]
        if isinstance(value, str) and value:
            assert lines[origin.line - 1][origin.column - 1 :].lstrip('"').startswith(value)


def test_the_unit_of_a_length_is_replaced() -> None:
    loaded = load("complete.yaml", overrides={"searcher.max_length.batches": 10})
    assert length(loaded) == Length(10, Unit.BATCHES)
    loaded_file = load("complete.yaml", overrides={"searcher.max_length": "{records: 10}"})
    assert length(loaded_file) == Length(10, Unit.RECORDS)


def test_flag_strings_are_yaml() -> None:
    overrides = {
        "labels": "[a, b]", "debug": "true", "data": {"k": [1]}, "description": "",
        "bind_mounts.0.host_path": "/srv", "hyperparameters.global_batch_size": 64,
    }  # fmt: skip
    config = load("complete.yaml", overrides=overrides).config
    assert config.labels == ["a", "b"]
    assert config.debug is True
    assert config.data == {"k": [1]}
    assert config.description is None
    assert config.bind_mounts[0]["host_path"] == "/srv"
    assert config.hyperparameters["global_batch_size"] == 64


def test_variables_match_names_in_any_case() -> None:
    environment = {
        "DETCORE_CONFIG__HYPERPARAMETERS__LEARNINGRATE": "0.5",
        "DETCORE_CONFIG__DATA__FOLDER": "/x",
        "OTHER": "1",
    }
    config = load_string(
        CONSTANT.replace("learning_rate", "learningRate"), environment=environment
    ).config
    assert config.hyperparameters["learningRate"] == 0.5
    assert config.data == {"folder": "/x"}


def test_environment_variables_are_settings() -> None:
    environment = read_environment({"DETCORE_HOME": "/h", BATCHES: "3", "PATH": "/bin"})
    assert environment.config_overrides == {BATCHES: "3"}


@pytest.mark.parametrize(
    ("settings", "place", "message"),
    [
        ({"overrides": {"searcher.max_lenght.batches": "5"}}, "command line:1:10:", "unknown key"),
        ({"overrides": {"debug": "true", "max_restarts": "x"}}, "command line:2:14:", "an integer"),
        ({"overrides": {"a..b": "x"}}, "command line:1:3:", "an empty name"),
        ({"overrides": {"labels": "[a"}}, "command line:1:8:", "never closed"),
        ({"overrides": {"bind_mounts.3.host_path": "/x"}}, "command line:1:13:", "no item '3'"),
        ({"environment": {BATCHES: "many"}}, "environment:1:47:", "a whole number of batches"),
        (
            {"environment": {"DETCORE_CONFIG__MAXRESTARTS": "1"}},
            "environment:1:17:",
            "unknown key 'maxrestarts'",
        ),
    ],
)
def test_mistakes_in_flags_and_variables(
    settings: dict[str, Any], place: str, message: str
) -> None:
    with pytest.raises(ExperimentFileError) as caught:
        load("complete.yaml", **settings)
    heading = next(row for row in str(caught.value).splitlines() if "error:" in row)
    assert heading.startswith(place)
    assert message in heading
    assert len(caught.value.diagnostics) == 1


def test_file_and_flags_have_one_report() -> None:
    with pytest.raises(ExperimentFileError) as caught:
        load_string(CONSTANT + "project: x\n\tbad\n", overrides={"max_restarts": "-1"})
    assert [item.source_name for item in caught.value.diagnostics] == ["exp.yaml", "command line"]


def test_rule_may_span_two_sources() -> None:
    with pytest.raises(ExperimentFileError) as caught:
        load("complete.yaml", overrides={"profiling.end_after_batch": 3})
    report = str(caught.value)
    message = "profiling ends after batch 3, before it begins"
    assert report.startswith(f"command line:1:27: error: {message}")
    assert f"::: {HERE / 'complete.yaml'}:83:19" in report


def test_set_flags() -> None:
    assert parse_set_flags(["a.b=1=2", "c=", "a.b=3"]) == {"c": "", "a.b": "3"}
    with pytest.raises(ConfigError, match="expected KEY=VALUE"):
        parse_set_flags(["max_restarts"])


# -- notices --------------------------------------------------------------------------------------


def test_fields_with_effect_have_no_notice() -> None:
    assert load("constant.yaml").notices == []


def test_cluster_fields_have_notices() -> None:
    notices = load("complete.yaml").notices
    path = HERE / "complete.yaml"
    pool = f"{path}:91:3: note: resources.resource_pool is for a cluster: accepted, no effect here."
    assert pool in notices
    for name in ("resources.weight", "environment", "bind_mounts", "security", "internal"):
        assert sum(f" {name} is " in line for line in notices) == 1, name
    assert len(notices) == len(set(notices)) == 16


def test_length_without_unit_has_notice() -> None:
    loaded = load("constant.yaml", overrides={"searcher.max_length": "7"})
    assert length(loaded) == Length(7, Unit.BATCHES)
    assert loaded.find_origins()["searcher.max_length.batches"].source == "flag"
    assert loaded.notices == [
        "command line:1:10: note: searcher.max_length has no unit: 7 is read as batches; "
        "write {batches: 7} or {epochs: 7} to be clear"
    ]


# -- hyperparameters ------------------------------------------------------------------------------

SPACE: dict[str, Any] = {
    "width": {"type": "int", "minval": 1, "maxval": 3},
    "rate": {"type": "log", "base": 10, "minval": -3, "maxval": -1},
    "kind": {"type": "categorical", "vals": ["a", "b", None]},
    "drop": {"type": "double", "minval": 0.25, "maxval": 0.5},
    "fixed": {"type": "const", "val": [1, 2]},
    "plain": "x",
    "group": {"z": {"type": "int", "minval": 0, "maxval": 9}, "y": 5},
}


def test_constants_need_no_seed() -> None:
    plain = {"a": 1, "b": {"type": "const", "val": {"k": 2}}, "g": {"c": None}}
    assert resolve_constants(plain) == {"a": 1, "b": {"k": 2}, "g": {"c": None}}


def test_ranges_need_a_seed() -> None:
    with pytest.raises(ConfigError, match=r"'drop' is a range.*\n.*\nPass seed="):
        resolve_constants(SPACE)


def test_seed_is_independent_of_name_order() -> None:
    turned = dict(reversed(list(SPACE.items())))
    turned["group"] = dict(reversed(list(SPACE["group"].items())))
    assert resolve_constants(SPACE, seed=7) == resolve_constants(turned, seed=7)
    assert resolve_constants(SPACE, seed=7) != resolve_constants(SPACE, seed=8)


def test_values_are_drawn_in_sorted_order() -> None:
    random = np.random.RandomState(7)
    drop = random.uniform(0.25, 0.5)
    z = random.randint(0, 10, dtype="int64")
    kind = ["a", "b", None][random.randint(3)]
    rate = 10 ** random.uniform(-3, -1)
    width = random.randint(1, 4, dtype="int64")
    values = resolve_constants(SPACE, seed=7)
    assert values == {
        "width": width, "rate": rate, "kind": kind, "drop": drop,
        "fixed": [1, 2], "plain": "x", "group": {"z": z, "y": 5},
    }  # fmt: skip
    assert type(values["width"]) is int
    assert type(values["drop"]) is float


def test_int_range_includes_both_ends() -> None:
    samples = {resolve_constants(SPACE, seed=seed)["width"] for seed in range(60)}
    assert samples == {1, 2, 3}


def test_loguniform_range() -> None:
    base = f"{SEARCHER}hyperparameters: "
    loaded = load_string(base + "{a: {type: loguniform, minval: 0.0001, maxval: 0.1}}\n")
    space = loaded.config.hyperparameters
    assert space == {"a": {"type": "log", "base": 10, "minval": -4.0, "maxval": -1.0}}
    assert loaded.notices == []
    samples = [resolve_constants(space, seed=seed)["a"] for seed in range(300)]
    assert 0.0001 <= min(samples) < 0.0002
    assert 0.05 < max(samples) <= 0.1
    # Half of the values are below the geometric mean.
    assert 120 < sum(value < 0.0001**0.5 * 0.1**0.5 for value in samples) < 180


def test_exponents_like_values_have_notice() -> None:
    base = f"{SEARCHER}hyperparameters: "
    loaded = load_string(base + "{g: {a: {type: log, minval: 0.0001, maxval: 0.1}}}\n")
    assert loaded.config.hyperparameters["g"]["a"]["base"] == 10
    (note,) = loaded.notices
    assert "hyperparameters.g.a has exponents" in note
    assert "10^0.0001 = 1.0002 to 10^0.1 = 1.2589" in note
    assert "{type: loguniform, minval: 0.0001, maxval: 0.1}" in note
    assert load_string(base + "{a: {type: log, minval: -4, maxval: 0.5}}\n").notices == []


@pytest.mark.parametrize("given", ["minval: 0, maxval: 1", "minval: -1, maxval: 1"])
def test_loguniform_range_must_be_positive(given: str) -> None:
    base = f"{SEARCHER}hyperparameters: "
    with pytest.raises(ExperimentFileError, match=r"minval: expected a value greater than 0, got"):
        load_string(f"{base}{{a: {{type: loguniform, {given}}}}}\n")


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("data." + "a." * 2000 + "b", 1, "a name of 2002 levels"),
        ("data.\udcff", 1, "this text contains half a character"),
        ("data.x", _nested(500), "more than 50000 values or 100 levels"),
        ("data.x", _nested(20_000), "cannot be written as JSON"),
        ("data.x", 10**5000, "cannot be written as JSON"),
        ("data.x", {("a",): 1}, "cannot be written as JSON"),
    ],
    ids=["deep name", "half", "deep", "deeper", "long", "key"],
)
def test_invalid_overrides_are_reported(name: str, value: object, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_string(CONSTANT, overrides={name: value})
