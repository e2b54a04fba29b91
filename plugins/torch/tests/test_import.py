"""PyTorch is imported when a class of the plugin is used, and not before."""

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


def test_importing_the_package_imports_no_pytorch() -> None:
    done = run(f"import sys, detcore_torch, detcore_torch.plugin; dir(detcore_torch); {NOT_YET}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [["--help"], ["plugins", "list"], ["plugins", "info", "torch"]])
def test_commands_about_plugins_import_no_pytorch(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETCORE_HOME", str(tmp_path))
    done = run(COMMAND.format(words=words))
    assert done.returncode == 0, done.stderr
    assert "torch" in done.stdout or words == ["--help"]


@pytest.mark.parametrize(
    ("torch", "said"),
    [
        ("None", "PluginNotFoundError: detcore-torch needs PyTorch, but 'torch' is not installed"),
        ("types.SimpleNamespace(__version__='2.1.0+cpu')", "this environment has 2.1.0"),
    ],
)
def test_pytorch_that_is_missing_or_old_is_named_with_the_command(torch: str, said: str) -> None:
    done = run(
        f"import sys, types; sys.modules['torch'] = {torch}\n"
        "import detcore_torch\n"
        "detcore_torch.DataLoader"
    )
    assert said in done.stderr
    assert 'pip install "torch>=2.2"' in done.stderr
