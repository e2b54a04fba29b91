"""The parts of adapters for scripts that need none of their libraries."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from detcore.errors import PluginError, PluginNotFoundError
from detcore_torch.libraries import supported
from detcore_torch.scripts.script_run import hyperparameters


def test_a_library_that_is_not_installed_is_named_with_its_command() -> None:
    with pytest.raises(PluginNotFoundError, match=r'pip install "detcore-torch\[loops\]"'):
        supported("no_such_library", (1, 0), (2,), "loops")


@pytest.mark.parametrize(
    ("version", "is_supported"),
    [("1.4.9", False), ("1.5", True), ("1.12.0.dev0", True), ("2.0.0rc1", False), ("3.1", False)],
)
def test_versions_outside_the_range_are_refused(
    monkeypatch: pytest.MonkeyPatch, version: str, is_supported: bool
) -> None:
    library = ModuleType("library")
    library.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "library", library)
    if is_supported:
        assert supported("library", (1, 5), (2,), "library") is library
    else:
        with pytest.raises(PluginError, match=f"library>=1.5,<2; this .* has library {version}"):
            supported("library", (1, 5), (2,), "library")


def test_a_script_by_itself_gets_its_defaults() -> None:
    assert hyperparameters(width=8) == {"width": 8}
