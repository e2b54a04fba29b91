"""Test that invalid entrypoints are reported without running code."""

from __future__ import annotations

from pathlib import Path

import pytest

from detcore.config import ExperimentFileError, load_config

FILES = {
    "model_def.py": 'raise SystemExit("this module must not run")',
    "train.py": "",
    "package/__init__.py": "",
    "package/inner.py": "",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def mistakes(folder: Path, entrypoint: str, hyperparameters: str = "{global_batch_size: 8}") -> str:
    file = folder / "const.yaml"
    file.write_text(
        f"entrypoint: {entrypoint}\n"
        "searcher: {name: single, metric: loss, max_length: {batches: 1}}\n"
        f"hyperparameters: {hyperparameters}\n"
    )
    try:
        load_config(file, code_dir=folder)
    except ExperimentFileError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "entrypoint",
    [
        "model_def:DigitsTrial", "model_def.py:DigitsTrial", "package:Packed",
        "package.inner:Inner", "package/inner.py:Inner", "json:JSONEncoder",
        "python3 train.py --steps 3", "[python3, -u, train.py]", "python3 -m package.inner",
        "detcore launch -n 2 -- python3 train.py", "docker run image -- /app/train.py",
        "ssh host -- python3 elsewhere.py", "cd package && ./run.sh", "ls", "export",
        "$PROGRAM train.py",
    ],
)  # fmt: skip
def test_valid_entrypoints(folder: Path, entrypoint: str) -> None:
    assert mistakes(folder, entrypoint) == ""


@pytest.mark.parametrize(
    ("entrypoint", "told", "meant"),
    [
        ("model_def.DigitsTrial", "write a trial class with a colon", "model_def:DigitsTrial"),
        ("package.inner.Inner", "write a trial class with a colon", "package.inner:Inner"),
        ("model_deff:DigitsTrial", "module 'model_deff' is neither in", "model_def:DigitsTrial"),
        ("lib/x.py:DigitsTrial", "lib/x.py not found in", ""),
        (f"{'m' * 300}:Model", "module 'mmm", ""),
        (f"python3 {'m' * 300}.py", "mmm.py not found in", ""),
        ("python3 trian.py", "trian.py not found in", "train.py"),
        ("python3 -u trian.py", "trian.py not found in", "train.py"),
        ("[python3, trian.py]", "trian.py not found in", "train.py"),
        ("./run.sh", "./run.sh not found in", ""),
        ("python3 -m trian", "module 'trian' is neither in", "train"),
        ("model_def", "write a trial class with a colon", "model_def:"),
    ],
)
def test_missing_entrypoints_are_reported(
    folder: Path, entrypoint: str, told: str, meant: str
) -> None:
    report = mistakes(folder, entrypoint)
    assert "const.yaml:1:" in report
    assert told in report
    assert meant in report


@pytest.mark.parametrize(
    ("values", "given"),
    [
        ("{type: double, minval: 1, maxval: 9}", "fractions"),
        ("{type: log, minval: 1, maxval: 2}", "fractions"),
        ("{type: categorical, vals: [8, 16.5]}", "the number 16.5"),
        ("{type: int, minval: 0, maxval: 9}", "the integer 0"),
        ("{type: int, minval: 1, maxval: 9}", ""),
        ("{type: categorical, vals: [8, 16]}", ""),
    ],
)
def test_invalid_batch_sizes_are_reported(folder: Path, values: str, given: str) -> None:
    text = f"expected integers, 1 or more, got {given}"
    report = mistakes(folder, "model_def:DigitsTrial", f"{{global_batch_size: {values}}}")
    assert (text in report) if given else report == ""
    # A script may round its lengths.
    assert mistakes(folder, "python3 train.py", f"{{global_batch_size: {values}}}") == ""


@pytest.mark.parametrize(
    ("name", "advice"),
    [("optuna", r"pip install 'detcore\[optuna\]'"), ("pbt", "adaptive_asha and optuna also")],
)
def test_unknown_search_method_is_reported(folder: Path, name: str, advice: str) -> None:
    file = folder / "search.yaml"
    file.write_text(
        "entrypoint: python3 train.py\n"
        f"searcher: {{name: {name}, metric: loss, max_trials: 2, max_length: {{batches: 1}}}}\n"
    )
    load_config(file)
    with pytest.raises(ExperimentFileError, match=rf"(?s)unknown searcher '{name}'.*{advice}"):
        load_config(file, models={"searcher": {"single": None}})
