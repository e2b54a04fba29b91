"""PyTorch is imported only when a class of the plugin is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

NOT_YET = "assert not {'torch', 'safetensors', 'numpy'} & set(sys.modules), sorted(sys.modules)"
COMMAND = """
import sys
sys.argv = ["detcore", *{words!r}]
from detcore.cli import main
try:
    main()
except SystemExit as stop:
    assert not stop.code
assert not {{"torch", "safetensors"}} & set(sys.modules), sorted(sys.modules)
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )


def test_import_does_not_import_pytorch() -> None:
    result = run(f"import sys, detcore_torch, detcore_torch.plugin; dir(detcore_torch); {NOT_YET}")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("words", [["--help"], ["plugins", "list"], ["plugins", "info", "torch"]])
def test_plugin_commands_do_not_import_pytorch(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETCORE_HOME", str(tmp_path))
    result = run(COMMAND.format(words=words))
    assert result.returncode == 0, result.stderr
    assert "torch" in result.stdout or words == ["--help"]


@pytest.mark.parametrize(
    ("torch", "said"),
    [
        ("None", "PluginNotFoundError: detcore-torch needs PyTorch, but 'torch' is not installed"),
        ("types.SimpleNamespace(__version__='2.1.0+cpu')", "this environment has 2.1.0"),
    ],
)
def test_missing_or_old_pytorch_is_reported(torch: str, said: str) -> None:
    result = run(
        f"import sys, types; sys.modules['torch'] = {torch}\n"
        "import detcore_torch\n"
        "detcore_torch.DataLoader"
    )
    assert said in result.stderr
    assert 'pip install "torch>=2.2"' in result.stderr
