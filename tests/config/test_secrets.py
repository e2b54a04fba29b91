"""Test which settings are secret, and the cost of finding them."""

from __future__ import annotations

import time

import pytest

from detcore.masking import hide_lines, mask_code, mask_config


@pytest.mark.parametrize(
    "config",
    [
        {"data": {"nested": {"token": "abcdef"}}},
        {"data": {"hf_token": "abcdef"}},
        {"environment": {"variables": ["WANDB_TOKEN=abcdef"]}},
        {"checkpoint_storage": {"secret_key": "abcdef"}},
        {"data": [{"api-key": "abcdef"}, {"pwd": "abcdef"}, {"refresh_token": "abcdef"}]},
        {"environment": {"variables": ["MYSQL_PWD=abcdef"]}},
        {"data": {"anchored": "abcdef", "password": "abcdef"}},
        {"data": {"url": "https://host/key?X-Amz-Security-Token=abcdef&x=1"}},
        {"data": {"connection": "Name=x;AccountKey=abcdef;Suffix=y"}},
        {"data": {"openai": "sk-abcdefghijklmnopqrstuvwx"}},
    ],
)
def test_secrets_are_masked_however_deep(config: dict[str, object]) -> None:
    assert "abcdef" not in str(mask_config(config))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["pad_token", "num_tokens", "tokenizer", "eos_token_id", "first_pass"]
)
def test_vocabulary_tokens_are_not_masked(name: str) -> None:
    assert mask_config({"data": {name: "abcdef"}}) == {"data": {name: "abcdef"}}


@pytest.mark.parametrize("line", ["1password: abcdef", "'api_token' : abcdef", "x.secret=abcdef"])
def test_secret_line_is_masked(line: str) -> None:
    assert "abcdef" not in hide_lines([line])[0]


HEAD = "entrypoint: model:Model\nsearcher: {name: single}\n"


def test_values_behind_aliases_are_masked() -> None:
    text = f"{HEAD}data:\n  x: {{y: &key hunter2}}\n  password: *key\n  z: 1\n"
    assert mask_code(text, []) == text.replace("hunter2", '"********"')


def test_multiline_secret_is_masked() -> None:
    text = f'{HEAD}data: {{token: abcdefgh, other: {{password: "first\nhunter2"}}}}\n'
    assert "hunter2" not in mask_code(text, ["abcdefgh", "first hunter2"])


def test_many_secrets_are_replaced_in_one_pass() -> None:
    """A sequential search of 30,000 values took half a minute."""

    def seconds(number: int) -> float:
        secrets = [f"abcdef{i}" for i in range(number)]
        text = " ".join(secrets)
        began = time.process_time()
        assert mask_code(text, secrets) == " ".join(["********"] * number)
        return time.process_time() - began

    assert seconds(16_000) < 30 * seconds(2_000) + 0.05


def test_aliases_are_followed_once() -> None:
    """The value has 2**60 paths."""
    aliases = "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))
    text = f"{HEAD}a0: &a0 [x]\n{aliases}token: hunter2\n"
    assert mask_code(text, []) == text.replace("hunter2", '"********"')


def test_deeply_nested_file_is_masked_by_line() -> None:
    nested = "[" * 5000 + "]" * 5000
    text = (
        f"entrypoint: model:Model\nsearcher: {{name: single}}\nx:\n  token: hunter2\ny: {nested}\n"
    )
    masked = mask_code(text, [])
    assert "hunter2" not in masked
    assert masked.endswith(f"\ny: {nested}\n")
