"""The requirements of distributions, as far as messages need them."""

from __future__ import annotations

import pytest

from detcore.hooks._requires import is_satisfied, specifier_for


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
