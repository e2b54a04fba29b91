"""Variables that frameworks want for their workers."""

from __future__ import annotations

from typing import Any, cast

import pytest

from detcore.runner._launching import framework_variables
from detcore.types import Framework


class Plugins:
    """The one method of a plugin manager that is asked."""

    def frameworks(self) -> dict[str, Framework]:
        names: dict[str, Any] = {"trial_class": "x:X", "context_class": "x:X", "controller": "x:X"}
        loud = Framework(name="loud", variables=(("LOUD_LOG", "2"), ("LOUD_COLOUR", "0")), **names)
        return {"quiet": Framework(name="quiet", **names), "loud": loud}


def test_workers_get_them_where_the_user_has_not_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = cast(Any, Plugins())
    monkeypatch.delenv("LOUD_LOG", raising=False)
    monkeypatch.delenv("LOUD_COLOUR", raising=False)
    assert framework_variables(plugins) == {"LOUD_LOG": "2", "LOUD_COLOUR": "0"}
    monkeypatch.setenv("LOUD_LOG", "0")
    assert framework_variables(plugins) == {"LOUD_COLOUR": "0"}
