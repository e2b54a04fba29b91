"""What frameworks say at every start: turned off by variables, or logged and not displayed."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, cast

import pytest

from detcore.database import read_trial_log
from detcore.runner._launching import framework_variables
from detcore.runner._running import TrialOutput
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


def test_notices_are_logged_and_not_displayed(tmp_path: Path) -> None:
    shown = []

    class Listener:
        def output(self, _info: object, _stream: str, line: str, *, rank: int) -> None:
            shown.append(line)

    info = cast(Any, types.SimpleNamespace(trial_dir=str(tmp_path), run_id=1))
    notices = [r"NOTE: .* are on\.", r"OLD: .*\nInstructions:\n.*"]
    output = TrialOutput(info, cast(Any, Listener()), notices)
    output(0, "stderr", "NOTE: custom operations are on.")
    output(0, "stderr", "Error: NOTE: custom operations are on.")
    output(0, "stdout", "NOTE: the lights are on.")
    assert shown == ["Error: NOTE: custom operations are on.", "NOTE: the lights are on."]
    shown.clear()
    for rank, line in (
        (0, "OLD: this"),
        (1, "Instructions:"),  # of another worker
        (0, "Instructions:"),
        (0, "use that"),
        (0, "use that"),
        (1, "OLD: this"),
        (1, "nothing that belongs to it"),
    ):
        output(rank, "stderr", line)
    output.close()
    assert shown == ["Instructions:", "use that", "nothing that belongs to it"]
    assert len(list(read_trial_log(tmp_path))) == 10
