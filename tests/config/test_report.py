"""Test the layout of reports, and that each mistake is reported once."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator

from detcore.config import (
    ExperimentConfig,
    ExperimentFileError,
    LoadedConfig,
    load_config,
    load_mapping,
    load_text,
    resolve_constants,
)
from detcore.errors import ConfigError

CONSTANT = Path(__file__).with_name("constant.yaml").read_text()
BASE = "entrypoint: ls\nsearcher: {name: single, metric: loss, max_length: {batches: 1}}\n"
MANY = """\
entrypoint: model_def:Trial
schedulin_unit: 50
max_restarts: "3"
min_validation_period: {batches: 10, epochs: 1}
hyperparameters:
  width: {type: int, minval: 8, maxval: 4}
searcher:
  name: adaptive_ahsa
  metric: loss
  max_length: {epochs: 3}
  max_trails: 5
  max_rungs: 3
  bracket_rungs: [2, 9]
"""

MANY_REPORT = """\
{path}:2:1: error: unknown key 'schedulin_unit' at the top level
  |
2 | schedulin_unit: 50
  | ^^^^^^^^^^^^^^ did you mean 'scheduling_unit'?

{path}:3:15: error: max_restarts: expected an integer, got the string "3"
  |
3 | max_restarts: "3"
  |               ^^^ remove the quotes: 3
  |
  = max_restarts: Maximum number of restarts of a failed trial from its last checkpoint.

{path}:4:38: error: a length has one unit, but this length has batches and epochs
  |
4 | min_validation_period: {{batches: 10, epochs: 1}}
  |                                      ^^^^^^ second unit
  |
  = keep one of them

{path}:6:30: error: minval must be less than maxval, and 8 is not less than 4
  |
6 |   width: {{type: int, minval: 8, maxval: 4}}
  |                              ^ minval
  |                                         - maxval
  |
  = exchange them

{path}:8:9: error: unknown searcher 'adaptive_ahsa'
  |
8 |   name: adaptive_ahsa
  |         ^^^^^^^^^^^^^ did you mean 'adaptive_asha'?
  |
  = valid: single, random, grid, adaptive_asha, async_halving, optuna

{path}:11:3: error: unknown key 'max_trails' in searcher (name: adaptive_asha)
   |
11 |   max_trails: 5
   |   ^^^^^^^^^^ did you mean 'max_trials'?

{path}:13:22: error: searcher.bracket_rungs.1: a bracket of 9 rungs, but max_rungs is 3
   |
13 |   bracket_rungs: [2, 9]
   |                      ^
   |
   = raise max_rungs to 9, or use fewer rungs

{path}: 7 mistakes"""


def load_string(text: str, **settings: Any) -> LoadedConfig:
    return load_text(text, name="exp.yaml", **settings)


def failing(text: str, **settings: Any) -> ExperimentFileError:
    with pytest.raises(ExperimentFileError) as caught:
        load_string(text, **settings)
    return caught.value


def report_file(path: Path) -> str:
    with pytest.raises(ExperimentFileError) as caught:
        load_config(path)
    return str(caught.value)


def test_all_mistakes_are_in_one_report(models: dict[str, Any]) -> None:
    assert str(failing(MANY, models=models)) == MANY_REPORT.format(path="exp.yaml")


def test_misspelt_section_is_checked() -> None:
    mistake = failing(
        CONSTANT.replace("searcher:", "sercher:").replace("batches", "bathces")
    ).diagnostics
    assert [item.suggestion for item in mistake] == ["searcher", "batches"]


def test_unknown_searcher_has_one_mistake(models: dict[str, Any]) -> None:
    assert [
        item.line
        for item in failing(
            CONSTANT.replace("name: single", "name: divination\n  crystal: ball"), models=models
        ).diagnostics
    ] == [7]


@pytest.mark.parametrize(
    ("content", "place", "message"),
    [
        (b"# nothing\n", "1:1", "'searcher' is missing in the experiment file"),
        (b"- a\n- b\n", "1:1", "expected the fields of an experiment, got a list"),
        (b"just words\n", "1:1", "expected the fields of an experiment, got a single value"),
        (b"name: caf\xe9\n", "1:10", "the file is not UTF-8: byte 0xe9"),
        ("name: a\n".encode("utf-16"), "1:1", "the file is not UTF-8: byte 0xff"),
        (b"name: a\x00b\n", "1:8", "the character U+0000 is not allowed in YAML"),
        (b"name: a\nx: y\n---\nname: b\n", "3:1", "not YAML: but found another document"),
        (b"data:\n\tfolder: x\n", "2:1", "a tab where YAML allows only spaces"),
        (b"name: 'a\nb: c\n", "1:7", "this quotation is never closed"),
        (b"labels: [a\n", "1:9", "this bracket is never closed"),
        (b"labels: [\n", "2:1", "a bracket above is never closed"),
        (b"labels: [a]]\n", "1:12", "a bracket that closes nothing"),
        (b"name: @x\n", "1:7", "not YAML: found character '@' that cannot start any token"),
        (b"name: *x\n", "1:7", "not YAML: found undefined alias 'x'"),
        (b"data:\n  a: 1\n b: 2\n", "3:2", "this line does not fit the block above it"),
        (b"data:\n  a: 1\n  b 2\n  c: 3\n", "3:3", "a key without ':'"),
        (b"data:\n  a 1\n  b: 2\n", "3:4", "a ':' where no new key can start"),
        (b"data: {a: 1,\tb: 2}\n", "1:13", "a tab where YAML allows only spaces"),
        (b"data: x\n\ty: 2\n", "2:1", "a tab where YAML allows only spaces"),
        (b"data: {a: .nan}\n", "1:11", "expected a finite number, got .nan"),
        (b"data: !!python/object:os.system {}\n", "1:7", "the tag '!!python/object:os.system'"),
        (b"data: !!int 3\n", "1:7", "the tag '!!int'"),
        (b"data: &d {a: *d}\n", "1:7", "this value contains itself through an alias"),
        (b"data: {? [a] : b}\n", "1:10", "expected a plain name as the key"),
        (b"data:\n  <<: 3\n", "2:7", "'<<' can only merge a mapping"),
    ],
)
def test_other_files_are_rejected(tmp_path: Path, content: bytes, place: str, message: str) -> None:
    path = tmp_path / "exp.yaml"
    path.write_bytes(content)
    assert f"{path}:{place}: error: {message}" in report_file(path)


def test_multiplying_aliases_are_rejected() -> None:
    bomb = "  a0: &a0 [x, x]\n" + "".join(
        f"  a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
    )
    assert "more than 50000 values" in str(failing(CONSTANT + "data:\n" + bomb))


def test_deep_nesting_is_rejected() -> None:
    assert "100 levels" in str(failing(CONSTANT + "data: {a: " + "[" * 5000 + "]" * 5000 + "}\n"))


@pytest.mark.parametrize(
    "value",
    [
        "1, ",
        "{}, ",
        *(pytest.param(text_item, marks=pytest.mark.soak) for text_item in ("[a], ", "a: 1, ")),
    ],
)
def test_too_many_values_are_rejected_early(value: str) -> None:
    assert "more than 50000 values" in str(
        failing(CONSTANT + "data: [" + value * 60_000 + "and it never ends\n")
    )


def test_first_of_many_mistakes_are_explained() -> None:
    """Each mistake requires a comparison with all known names."""
    error = failing(CONSTANT + "".join(f"searcher{number}: 1\n" for number in range(5000)))
    assert error.summary == "exp.yaml: 5000 mistakes, of which 100 are shown"
    messages = [mistake.message for mistake in error.diagnostics]
    assert messages[99] == "unknown key 'searcher99' at the top level"
    assert messages[100].startswith("searcher100: ")
    assert str(error).count("error: ") == 100


def test_missing_file_error_lists_files(tmp_path: Path) -> None:
    (tmp_path / "const.yaml").touch()
    with pytest.raises(ExperimentFileError) as caught:
        load_config(tmp_path / "cnst.yaml")
    assert str(caught.value).startswith(f"error: no file '{tmp_path / 'cnst.yaml'}'")
    assert caught.value.diagnostics[0].suggestion == "const.yaml"


@pytest.mark.parametrize(
    ("others", "listed"),
    [
        ("abcdefg", "g.yaml, search.yaml"),
        ("abcdefghi", "g.yaml, h.yaml and 2 more"),
    ],
)
def test_mistyped_file_name_has_suggestion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: str, listed: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (*others, "search"):
        Path(f"{name}.yaml").touch()
    assert report_file(Path("serach.yaml")).splitlines() == [
        "error: no file 'serach.yaml'",
        "  = did you mean 'search.yaml'?",
        "  = experiment files in .: a.yaml, b.yaml, c.yaml, d.yaml, e.yaml, f.yaml, " + listed,
    ]


def test_empty_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "const.yaml"
    path.write_text("\n")
    assert report_file(path).startswith(f"error: '{path}' is empty\n")


def test_indented_key_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "const.yaml"
    hint = "start keys of the same level in the same column"
    path.write_text("name: a\n\n searcher: {name: single}\n")
    assert f"= line 3 is indented further than line 1; {hint}\n" in report_file(path)
    for text in ("data:\n  a 1\n  b: 2\n", "name: a: b\n", "name: a\n  b: c: d\n"):
        path.write_text(text)
        report = report_file(path)
        assert "a ':' where no new key can start" in report
        assert (hint in report) == ("b: c" in text)


def test_python_file_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("const.yaml").touch()
    path = Path("model_def.py")
    path.write_text('"""A model."""\n')
    assert report_file(path).splitlines() == [
        "error: 'model_def.py' is Python code; expected an experiment file (YAML)",
        "  = an experiment file names a trial class: 'entrypoint: model_def:CLASS'",
        "  = run a script that calls core.init() directly: python model_def.py",
        "  = experiment files in .: const.yaml",
    ]


def test_directory_is_rejected(tmp_path: Path) -> None:
    assert "is a directory, not an experiment file" in report_file(tmp_path)


def test_endless_device_is_rejected() -> None:
    assert "/dev/zero has more than 4,000,000 bytes" in report_file(Path("/dev/zero"))


def test_missing_field_points_at_top() -> None:
    error = failing("# comment\nname: x\n", required=("entrypoint",))
    assert [(item.line, item.column) for item in error.diagnostics] == [(2, 1), (2, 1)]
    assert "'searcher' is missing in the experiment file" in str(error)
    assert "'entrypoint' is missing in the experiment file" in str(error)


def test_caret_is_aligned_after_wide_characters() -> None:
    error = failing(CONSTANT + 'reproducibility: {"日本": 1, seed: 3}\n')
    assert [item.column for item in error.diagnostics] == [19, 28]
    caret = [row for row in str(error).splitlines() if "^" in row][1]
    # Each of the two characters is two terminal columns wide.
    assert caret.index("^") == len("11 | ") + 27 + 2


def test_long_line_is_shortened_around_mistake() -> None:
    error = failing(
        CONSTANT + f"resources: {{resource_pool: {'x' * 500}, weigth: 1, priority: 2}}\n"
    )
    assert error.diagnostics[0].suggestion == "weight"
    marked_line = next(row for row in str(error).splitlines() if row.startswith("11 |"))
    caret = next(row for row in str(error).splitlines() if "^" in row)
    assert len(marked_line) < 170
    assert marked_line[caret.index("^") :].startswith("weigth: 1")


# -- secrets --------------------------------------------------------------------------------------

SECRETS = """\
entrypoint: model_def:Trial
searcher: {name: single, metric: loss, max_length: {batches: 1}}
checkpoint_storage:
  type: s3
  bucket: [runs]
  acces_key: TOPSECRET1
  secret_key: 987654321
  endpoint_url: {url: "https://me:TOPSECRET2@host"}
environment:
  registry_auth: {username: 5, pasword: TOPSECRET3}
"""


def test_message_shows_no_secret(models: dict[str, Any]) -> None:
    error = failing(
        SECRETS,
        overrides={"checkpoint_storage.secret_key": "[TOPSECRET4]"},
        environment={"DETCORE_CONFIG__CHECKPOINT_STORAGE__ACCESS_KEY": "[TOPSECRET5]"},
        models=models,
    )
    assert len(error.diagnostics) >= 5
    assert "TOPSECRET" not in str(error)
    assert "987654321" not in str(error)


@pytest.mark.parametrize("line", ["secret_key: 'TOPSECRET", "secret_key: [TOPSECRET, ]]"])
def test_yaml_error_shows_no_secret(line: str) -> None:
    assert "TOPSECRET" not in str(failing(f"checkpoint_storage:\n  {line}\n"))


@pytest.mark.parametrize(
    "storage",
    [
        "{type: s3, secret_key: [\nTOPSECRET\n]}",
        "\n  type: s3\n  secret_key:\n  - TOPSECRET",
        "\n  type: s3\n  secret_key: |\n    TOPSECRET\n  bucket: 3",
        "{type: s3, bucket: [&a TOPSECRET], secret_key: *a}",
    ],
)
def test_message_shows_no_secret_from_any_source(storage: str, models: dict[str, Any]) -> None:
    assert "TOPSECRET" not in str(failing(f"checkpoint_storage: {storage}\n", models=models))


def test_validation_error_hides_values() -> None:
    with pytest.raises(ValidationError) as caught:
        ExperimentConfig.model_validate(
            {"checkpoint_storage": {"type": "s3", "secret_key": ["TOPSECRET"]}}
        )
    assert "TOPSECRET" not in str(caught.value)


# -- what plugins provide -------------------------------------------------------------------------


class ToySettings(BaseModel):
    type: str
    shelf: int
    depth: int = 1


def test_searchers_and_storage_types_of_plugins() -> None:
    text = CONSTANT.replace("name: single", "name: oracle\n  crystal: ball")
    loaded = load_string(
        text + "checkpoint_storage: {type: toy, shelf: 3, save_trial_best: 0}\n",
        models={"searcher": {"oracle": None}, "checkpoint_storage": {"toy": ToySettings}},
    )
    plain = loaded.config.model_dump(mode="json")
    assert plain["searcher"]["crystal"] == "ball"
    assert plain["checkpoint_storage"] == {
        "type": "toy", "shelf": 3, "depth": 1, "save_trial_best": 0,
        "save_trial_latest": 1, "save_experiment_best": 0,
    }  # fmt: skip
    assert type(loaded.config).model_validate(plain) == loaded.config


def test_mistake_in_plugin_settings() -> None:
    error = failing(
        CONSTANT + "checkpoint_storage: {type: tyo, shefl: '3', save_trial_best: -1}\n",
        models={"checkpoint_storage": {"toy": ToySettings}},
    )
    assert [(item.column, item.suggestion) for item in error.diagnostics] == [
        (28, "toy"), (33, "shelf"), (40, "3"), (62, None),
    ]  # fmt: skip


class OracleSettings(BaseModel):
    crystal: str = "ball"
    clarity: float


def test_settings_of_plugin_searcher_are_checked() -> None:
    registered: dict[str, Any] = {"models": {"searcher": {"oracle": OracleSettings}}}
    good = "name: oracle\n  clarity: 0.5\n  source_trial_id: 3"
    searcher = load_string(CONSTANT.replace("name: single", good), **registered).config.model_dump(
        mode="json"
    )["searcher"]
    assert (searcher["clarity"], searcher["source_trial_id"]) == (0.5, 3)
    assert searcher["metric"]
    assert searcher["max_length"]
    error = failing(
        CONSTANT.replace("name: single", "name: oracle\n  cristal: ball\n  clarity: x"),
        **registered,
    )
    assert [(item.primary.span.line, item.suggestion) for item in error.diagnostics] == [
        (error.diagnostics[0].primary.span.line, "crystal"),
        (error.diagnostics[0].primary.span.line + 1, None),
    ]
    assert "expected a number" in str(error)
    assert (
        failing(
            CONSTANT.replace("name: single", "name: oracle\n  clarity: 1\n  metrik: x"),
            **registered,
        )
        .diagnostics[0]
        .suggestion
        == "metric"
    )


class CannonSettings(BaseModel):
    address: str
    powder: float = Field(default=1.0, ge=0)


def test_settings_of_a_launcher_are_checked() -> None:
    models = {"launcher": {"cannon": CannonSettings, "local": None}}
    registered: dict[str, Any] = {"models": models}
    loaded = load_string(
        CONSTANT + "launcher: {name: cannon, address: here, powder: 2}\n", **registered
    )
    plain = loaded.config.model_dump(mode="json")
    assert plain["launcher"] == {"name": "cannon", "address": "here", "powder": 2}
    assert type(loaded.config).model_validate(plain) == loaded.config
    error = failing(CONSTANT + "launcher: {name: cannon, adress: here, powder: -1}\n", **registered)
    assert [(item.column, item.suggestion) for item in error.diagnostics] == [
        (26, "address"), (48, None),
    ]  # fmt: skip
    assert "unknown key 'adress' in launcher (name: cannon)" in str(error)
    assert "did you mean 'address'?" in str(error)
    assert "powder: expected a value greater than or equal to 0, got the integer -1" in str(error)


@pytest.mark.parametrize(
    ("launcher", "column", "suggestion", "message"),
    [
        ("canon", 11, "cannon", "unknown launcher 'canon'"),
        ("{name: canon}", 18, "cannon", "unknown launcher 'canon'"),
        ("pigeon", 11, None, "valid: cannon, local"),
        ("cannon", 1, None, "'address' is missing in 'launcher'"),
        ("{name: cannon}", 1, None, "'address' is missing in launcher (name: cannon)"),
    ],
)
def test_unknown_launcher_is_rejected(
    launcher: str,
    column: int,
    suggestion: str | None,
    message: str,
) -> None:
    error = failing(
        f"{CONSTANT}launcher: {launcher}\n",
        models={"launcher": {"cannon": CannonSettings, "local": None}},
    )
    assert message in str(error)
    assert (column, suggestion) in [(item.column, item.suggestion) for item in error.diagnostics]


def test_any_launcher_is_valid_without_models() -> None:
    assert load_string(CONSTANT + "launcher: {name: cannon, adress: here}\n").config.model_dump()[
        "launcher"
    ] == {"name": "cannon", "adress": "here"}


def test_named_model_is_imported_on_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shelf_settings.py").write_text(
        "from pydantic import BaseModel\nclass Shelf(BaseModel):\n    type: str\n    size: int\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    types = {"shelf": "shelf_settings:Shelf", "broken": "no_such_module:Settings"}
    models = {"checkpoint_storage": types}
    assert [
        item.suggestion
        for item in failing(
            CONSTANT + "checkpoint_storage: {type: shelf, sise: 3}\n", models=models
        ).diagnostics
    ] == ["size"]
    assert load_string(CONSTANT + "checkpoint_storage: /runs\n", models=models).notices == []


def test_dictionary_is_checked_like_file() -> None:
    with pytest.raises(ConfigError, match=r"config:4:5: error: unknown unit 'batch'"):
        load_mapping({"searcher": {"metric": "loss", "max_length": {"batch": 3}, "name": "single"}})
    with pytest.raises(ConfigError, match="cannot be stored as JSON"):
        load_mapping({"name": object()})


def test_strings_of_a_dictionary_stay_strings() -> None:
    texts = ["1e-3", "0o17", "-.5E3", "1_0", "yes", "1:30", "null", "a: b", "x\ny", ""]
    loaded = load_mapping(
        {
            "searcher": {"metric": "loss", "name": "single", "max_length": {"batches": 1}},
            "hyperparameters": {"texts": texts, "numbers": [1e-5, 1e16, -3]},
        }
    )
    values = loaded.config.hyperparameters
    assert (values["texts"], values["numbers"]) == (texts, [1e-5, 1e16, -3])


def test_rules_skip_invalid_values() -> None:
    with pytest.raises(ExperimentFileError) as raised:
        load_mapping(
            {"searcher": {"name": "adaptive_asha", "max_rungs": "many", "bracket_rungs": [9]}}
        )
    assert "max_rungs: expected an integer" in str(raised.value)
    assert "a bracket of 9 rungs" not in str(raised.value)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"entrypoint": ""}, "entrypoint: expected a value that is not empty"),
        (
            {"hyperparameters": {"rate": {"type": "categorical", "vals": []}}},
            "vals: expected a value that is not empty",
        ),
        ({"max_restarts": "x" * 60}, f'got the string "{"x" * 60}"'),
        ({"max_restarts": "x" * 61}, f'got the string "{"x" * 57}..."'),
    ],
)
def test_empty_and_long_values_are_described(mapping: dict[str, object], message: str) -> None:
    with pytest.raises(ExperimentFileError) as raised:
        load_mapping(mapping)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('name: "\\U00110000"', "3:8: error: this escape names no character"),
        ('name: "a \\Uffffffff"', "3:10: error: this escape names no character"),
        ('data: {x: "\\ud800"}', "3:11: error: this text contains half a character"),
        ('data: {"\\udfff": 1}', "3:8: error: this text contains half a character"),
        ('name: "\\ud83d\\ude00"', "3:7: error: this text contains half a character"),
    ],
)
def test_invalid_escapes_are_reported(line: str, told: str) -> None:
    assert told in str(failing(f"{BASE}{line}\n"))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("{type: double, minval: -1.0e308, maxval: 1.0e308}", "beyond the largest number"),
        ("{type: log, base: 10, minval: 1, maxval: 309}", "beyond the largest number"),
        ("{type: log, base: 1.0e-9, minval: -99, maxval: 1}", "beyond the largest number"),
        ("{type: log, base: 10, minval: 1, maxval: 1.0e308}", "beyond the largest number"),
        (
            "{type: log, base: 0, minval: 1, maxval: 2}",
            "a.base: expected a value greater than 0, got",
        ),
        ("{type: int, minval: 1, maxval: 9223372036854775808}", "drawn from 64 bits"),
        ("{type: int, minval: -9223372036854775809, maxval: 1}", "drawn from 64 bits"),
    ],
)
def test_empty_ranges_are_reported(given: str, told: str) -> None:
    assert told in str(failing(f"{BASE}hyperparameters: {{a: {given}}}\n"))


@pytest.mark.parametrize(
    "given",
    [
        "{type: double, minval: -8.0e307, maxval: 8.0e307}",
        "{type: log, base: 10, minval: -400, maxval: 308}",
        "{type: int, minval: -9223372036854775808, maxval: 9223372036854775807}",
    ],
)
def test_widest_ranges_can_be_drawn(given: str) -> None:
    config = load_string(f"{BASE}hyperparameters: {{a: {given}}}\n").config
    value = resolve_constants(config.hyperparameters, seed=3)["a"]
    assert abs(value) <= 2**1023


def test_too_large_length_is_reported() -> None:
    base = BASE.replace("1", "%d")
    load_string(base % (2**63 - 1))
    assert "9223372036854775808 batches are more than" in str(failing(base % 2**63))


def test_large_file_is_rejected_early() -> None:
    with pytest.raises(ExperimentFileError, match=r"has 1,\d+,\d+ characters, more"):
        load_string("\n".join(f"key{number}: {{a: 1}}" for number in range(70_000)))


@pytest.mark.parametrize("head", ["0x", "", "-"])
def test_number_of_digits_is_limited(head: str) -> None:
    error = failing(f"{BASE}max_restarts: {head}{'1' * 5000}\n")
    assert "characters; expected at most 400 digits" in str(error)


def test_plugin_message_shows_no_secret() -> None:
    class Storage(BaseModel):
        type: Literal["vault"]
        token: str

        @field_validator("token")
        @classmethod
        def check(cls, value: str) -> str:
            raise ValueError(f"expected 40 digits, got {value!r}")

    storage = "checkpoint_storage: {type: vault, token: hunter2supersecret}\n"
    models = {"checkpoint_storage": {"vault": Storage}}
    report = str(failing(CONSTANT + storage, models=models))
    assert "expected 40 digits (value not shown)" in report
    assert "hunter2" not in report


def test_yaml_line_ends_are_supported() -> None:
    load_string(CONSTANT + 'data: {text: "a\u2028\u2028\u2028b"}\n')


def test_report_escapes_control_characters() -> None:
    report = str(failing(CONSTANT + '"\\e]0;owned\\a\\u202E": 1\n'))
    assert "owned" in report
    assert not {"\x1b", "\x07", "\u202e"} & set(report)
