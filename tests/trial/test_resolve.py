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
        ("Misspelt", r"the class has no build_model\.\nA ToolTrial defines them"),
        ("Empty", r"the class has no build_data and no build_model\.\nA ToolTrial"),
    ],
)
def test_a_class_without_one_of_its_methods(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / "lacking.py").write_text(CODE)
    assert import_trial_class("lacking.py:Whole", tmp_path).__name__ == "Whole"
    with pytest.raises(InvalidExperimentError, match=told):
        import_trial_class(f"lacking.py:{name}", tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "from detcore.report import Chart",
            "there is no module 'detcore.report'. Did you mean 'detcore_report'?",
        ),
        (
            "from detcore_testing import FrameworkSiute",
            "detcore_testing has no name 'FrameworkSiute'. Did you mean 'FrameworkSuite'?",
        ),
    ],
)
def test_wrong_import_of_a_plugin_names_the_closest(
    tmp_path: Path, line: str, message: str
) -> None:
    (tmp_path / "wrong_import.py").write_text(line)
    with pytest.raises(InvalidExperimentError, match=re.escape(message)):
        import_trial_class("wrong_import.py:Trial", tmp_path)
