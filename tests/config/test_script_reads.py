"""Test notices about hyperparameters whose name in the script is similar."""

from __future__ import annotations

from pathlib import Path

import pytest

from detcore.config import load_config

SCRIPT = """
from detcore import core

with core.init() as context:
    context.info.hparams["dropout"]
"""
FILE = """
entrypoint: {entrypoint}
hyperparameters: {{learning_rate: 0.1, droput: 0.3, global_batch_size: 8}}
searcher: {{name: single, metric: loss, max_length: {{batches: 10}}}}
"""


def find_notices(
    folder: Path, code: str, entrypoint: str = "python3 train.py", **files: str
) -> list[str]:
    """Return the notices of an experiment whose script is ``train.py``."""
    for name, text in {"train": code, **files}.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (folder / "const.yaml").write_text(FILE.format(entrypoint=entrypoint))
    loaded = load_config(folder / "const.yaml", code_dir=folder)
    return [notice.partition(": note: ")[2] for notice in loaded.notices]


@pytest.mark.parametrize(
    "entrypoint",
    [
        "python3 train.py",
        "[python3, -u, train.py]",
        "python3 -m train",
        "detcore launch -n 2 -- python3 train.py",
    ],
)
def test_misspelt_name_has_suggestion(tmp_path: Path, entrypoint: str) -> None:
    assert find_notices(tmp_path, SCRIPT, entrypoint) == [
        "hyperparameters.droput is not in the code of train.py: did you mean 'dropout', which is?"
    ]


def test_modules_next_to_script_are_read(tmp_path: Path) -> None:
    files = {"package/__init__": "", "package/parts": "def build(droput): pass"}
    assert find_notices(tmp_path, SCRIPT, **files) == []
    files["package/parts"] = "hparams.get('dropout')"
    assert len(find_notices(tmp_path, "import package.parts", **files)) == 1


@pytest.mark.parametrize(
    ("code", "entrypoint"),
    [
        ("train(**context.info.hparams)", "python3 train.py"),
        (SCRIPT.replace("core", "droput"), "python3 train.py"),
        (SCRIPT, "torchrun train.py"),
        (SCRIPT, "cd . && python3 train.py"),
        (SCRIPT, "python3 -c 'import train' train.py"),
        (SCRIPT + "#" * 1_000_000, "python3 train.py"),
    ],
)
def test_code_without_similar_name_has_no_notice(
    tmp_path: Path, code: str, entrypoint: str
) -> None:
    assert find_notices(tmp_path, code, entrypoint) == []
