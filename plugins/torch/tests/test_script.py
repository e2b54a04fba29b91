"""Parts of the script adapters that do not need the libraries."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from detcore.errors import PluginError, PluginNotFoundError
from detcore_torch.libraries import import_supported
from detcore_torch.scripts.script_run import hyperparameters


def test_missing_library_names_install_command() -> None:
    with pytest.raises(PluginNotFoundError, match=r'pip install "detcore-torch\[loops\]"'):
        import_supported("no_such_library", (1, 0), (2,), "loops")


@pytest.mark.parametrize(
    ("version", "is_supported"),
    [("1.4.9", False), ("1.5", True), ("1.12.0.dev0", True), ("2.0.0rc1", False), ("3.1", False)],
)
def test_unsupported_versions_are_rejected(
    monkeypatch: pytest.MonkeyPatch, version: str, is_supported: bool
) -> None:
    library = ModuleType("library")
    library.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "library", library)
    if is_supported:
        assert import_supported("library", (1, 5), (2,), "library") is library
    else:
        with pytest.raises(PluginError, match=f"library>=1.5,<2; this .* has library {version}"):
            import_supported("library", (1, 5), (2,), "library")


def test_standalone_script_gets_defaults() -> None:
    assert hyperparameters(width=8) == {"width": 8}
