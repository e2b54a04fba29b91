"""How many of the deliberately wrong plugins are shown to the suites."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--wrong",
        choices=["some", "all", "whole"],
        default="some",
        help="wrong plugins: those that differ most, all of them, or all with the whole suite",
    )
