"""API ranges, and the little that is read of versions and requirements."""

from __future__ import annotations

import re

import pytest

from detcore.hooks import API_VERSION, ApiRange
from detcore.hooks._requires import is_satisfied, specifier_for


@pytest.mark.parametrize(
    ("text", "version", "is_too_old", "is_too_new"),
    [
        ("1.0", (1, 0), False, False),
        ("1.0", (1, 9), False, False),
        ("1.2", (1, 1), False, True),
        ("1.0", (2, 0), True, False),
        ("1.0:1.4", (1, 4), False, False),
        ("1.0:1.4", (1, 5), True, False),
        ("1.0 : 2.3", (2, 0), False, False),
        ("1.10", (1, 9), False, True),
    ],
)
def test_range(text: str, version: tuple[int, int], is_too_old: bool, is_too_new: bool) -> None:
    api = ApiRange.parse(text)
    assert api.is_too_old_for(version) is is_too_old
    assert api.is_too_new_for(version) is is_too_new
    assert ApiRange.parse(str(api)) == api


@pytest.mark.parametrize(
    "text", ["", "1", "1.0.0", "v1.0", "1.0:", ":1.0", "01.0", "1.0:1.2:1.3", "¹.0"]
)
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a version such as 1\.0"):
        ApiRange.parse(text)


def test_range_that_ends_before_it_starts() -> None:
    with pytest.raises(ValueError, match=re.escape("ends (1.0) before it starts (1.2)")):
        ApiRange.parse("1.2:1.0")


def test_the_version_is_one_that_a_plugin_can_declare() -> None:
    assert ApiRange.parse(".".join(map(str, API_VERSION))).minimum == API_VERSION


@pytest.mark.parametrize(
    ("version", "specifier", "answer"),
    [
        ("0.1.0", ">=0.1,<0.2", True),
        ("0.2.0", ">=0.1,<0.2", False),
        ("0.2.0rc1", "<0.2", False),
        ("0.2.0rc1", ">=0.2", False),
        ("0.2.dev3", ">=0.2rc1", False),
        ("0.2.dev3", ">=0.2a1", False),
        ("0.2a1", ">=0.2.dev3", True),
        ("0.2.0.post1", ">0.2", False),
        ("0.2.0.post1", ">=0.2", True),
        ("0.10", ">=0.9", True),
        ("1.0", "==1.0.0", True),
        ("1.4.2", "==1.*", True),
        ("2.0", "==1.*", False),
        ("1.4.2", "!=1.4.*", False),
        ("1.4.5", "~=1.4.2", True),
        ("1.5.0", "~=1.4.2", False),
        ("1.5.0", "~=1.4", True),
        ("1.4.2+local", "==1.4.2", True),
        ("unknown", ">=1", None),
        ("1.0", "===1.0", True),
        ("0.1", ">=1,===0.1", False),
    ],
)
def test_is_satisfied(version: str, specifier: str, answer: bool | None) -> None:
    assert is_satisfied(version, specifier) is answer


def test_specifier_for() -> None:
    lines = ["click", "Det_Core[x] (>=0.1, <0.2)", "other @ https://example.org/other.whl"]
    assert specifier_for("det-core", lines) == "<0.2,>=0.1"
    assert specifier_for("click", lines) is None
    assert specifier_for("other", lines) is None
