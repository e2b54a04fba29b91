"""From an entrypoint to a trial class."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from detcore.errors import InvalidExperimentError
from detcore.trial.entrypoint import import_trial_class

CODE = """
import abc
from detcore import Trial

class ToolTrial(Trial, abc.ABC):
    @abc.abstractmethod
    def build_model(self): ...
    @abc.abstractmethod
    def build_data(self): ...

class Whole(ToolTrial):
    def build_model(self): ...
    def build_data(self): ...

class Misspelt(ToolTrial):
    def build_modle(self): ...
    def build_data(self): ...

class Empty(ToolTrial): ...
"""


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Misspelt", r"the class does not define build_model\.\nEach ToolTrial must"),
        ("Empty", r"the class does not define build_data and build_model\.\nEach ToolTrial"),
    ],
)
def test_class_without_methods_is_refused(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / "lacking.py").write_text(CODE)
    assert import_trial_class("lacking.py:Whole", tmp_path).__name__ == "Whole"
    with pytest.raises(InvalidExperimentError, match=told):
        import_trial_class(f"lacking.py:{name}", tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "from detcore.report import Chart",
            "module 'detcore.report' not found. Did you mean 'detcore_report'?",
        ),
        (
            "from detcore_testing import FrameworkSiute",
            "detcore_testing has no name 'FrameworkSiute'. Did you mean 'FrameworkSuite'?",
        ),
    ],
)
def test_wrong_plugin_import_suggests_name(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "wrong_import.py").write_text(line)
    with pytest.raises(InvalidExperimentError, match=re.escape(message)):
        import_trial_class("wrong_import.py:Trial", tmp_path)
