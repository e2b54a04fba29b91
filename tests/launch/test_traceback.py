"""Errors of the user's code, with its frames and the cause as the last line."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from detcore.core.trial_outcome import derive_outcome, describe_cause
from detcore.errors import ConfigError, DataError
from detcore.launch.user_traceback import format_user_error
from detcore.launch.worker import _is_out_of_memory

# Messages of Keras 3.15, Keras 2.15 and TensorFlow, with shortened paths.
KERAS_3 = """Exception encountered when calling Sequential.call().

\x1b[1mInput 0 of layer 'dense' is incompatible with the layer: expected axis -1\x1b[0m

Arguments received by Sequential.call():
  • inputs=tf.Tensor(shape=(None, 7, 8, 1), dtype=float32)
  • mask=None"""
KERAS_2 = """in user code:

    File "/lib/site-packages/keras/src/engine/training.py", line 1401, in train_function  *
        return step_function(self, iterator)
    File "/lib/site-packages/keras/src/input_spec.py", line 280, in assert_compatible
        raise ValueError(

    ValueError: Exception encountered when calling layer 'dense' (type Dense).
    
    Input 0 of layer "dense" is incompatible with the layer: expected axis -1
    
    Call arguments received by layer 'dense' (type Dense):
      • inputs=tf.Tensor(shape=(None, 768), dtype=float32)
"""  # noqa: W293
GRAPH = """Graph execution error:

Detected at node compile_loss/GatherV2 defined at (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main

  File "{own}", line 88, in train_step

  File "/lib/site-packages/tensorflow/python/util/tf_stack.py", line 162, in extract_stack

indices[0] = 10 is not in [0, 10)
\t [[{{{{node compile_loss/GatherV2}}}}]] [Op:__inference__loop_1891]"""
ROOTS = """Graph execution error:

Detected at node 'Equal' defined at (most recent call last):
    File "/lib/python3.11/runpy.py", line 198, in _run_module_as_main
      return _run_code(code)
Node: 'Equal'
2 root error(s) found.
  (0) INVALID_ARGUMENT:  Incompatible shapes: [8] vs. [7]"""

COMPILED = """Graph execution error:

Detected at node sequential_1/lambda_1/MatMul defined at (most recent call last):
<stack traces unavailable>
Matrix size-incompatible: In[0]: [8,3], In[1]: [8,3]
\t [[{{node sequential_1/lambda_1/MatMul}}]] [Op:__inference__loop_509]"""

FAKE = """RuntimeError when making fake tensor call
  Explanation: Dynamo failed to run FX node with fake tensors: got RuntimeError('[8, 2] X [7, 2]')
  Hint: Your code may result in an error when running in eager.

"""


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("one line", "one line"),
        ("", ""),
        ("a line\nand a second", "a line"),
        ("these are missing:\n  loss\n  accuracy", "these are missing: loss"),
        ("nothing follows:\n\n", "nothing follows:"),
        (
            KERAS_3,
            "Exception encountered when calling Sequential.call(): Input 0 of "
            "layer 'dense' is incompatible with the layer: expected axis -1",
        ),
        (
            KERAS_2,
            'in user code: Input 0 of layer "dense" is incompatible with the layer: expected '
            "axis -1",
        ),
        (GRAPH.format(own="x.py"), "Graph execution error: indices[0] = 10 is not in [0, 10)"),
        (
            ROOTS,
            "Graph execution error: (0) INVALID_ARGUMENT:  Incompatible shapes: [8] vs. [7]",
        ),
        (
            COMPILED,
            "Graph execution error: Matrix size-incompatible: In[0]: [8,3], In[1]: [8,3]",
        ),
        (
            FAKE,
            "RuntimeError when making fake tensor call: Explanation: Dynamo failed to run FX node "
            "with fake tensors: got RuntimeError('[8, 2] X [7, 2]')",
        ),
    ],
)
def test_cause_is_found_behind_announcement(message: str, cause: str) -> None:
    expected = f"ValueError: {cause}" if cause else "ValueError"
    assert describe_cause(ValueError(message)) == expected


MODEL = """
def call(function):
    return function()

def helper(function):
    try:
        return function()
    except Exception as error:
        raise RuntimeError("in the helper") from error
"""


@pytest.fixture
def model_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "own_model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
def own(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.delitem(sys.modules, "own_model", raising=False)
    return importlib.import_module("own_model")


def formatted(function: Callable[[], object], model_dir: Path) -> tuple[list[str], Path]:
    full = model_dir.parent / "trial" / "traceback.txt"
    with pytest.raises(Exception) as caught:
        function()
    return format_user_error(caught.value, model_dir, full=full).splitlines(), full


def fail(message: str) -> Callable[[], object]:
    def raise_it() -> object:
        raise ValueError(message)

    return raise_it


def test_user_frames_come_first_and_cause_last(own: ModuleType, model_dir: Path) -> None:
    file = model_dir / "own_model.py"
    error = fail(GRAPH.format(own=file))
    lines, full = formatted(lambda: own.call(error), model_dir)
    assert lines[:2] == [
        "Traceback (your code, most recent call last):",
        f'  File "{file}", line 3, in call',
    ]
    assert f"  (3 frames outside {model_dir} left out; {full} has all)" in lines
    # The user's frames in a traceback inside the message are also kept.
    assert f'  File "{file}", line 88, in train_step' in lines
    assert not any("site-packages" in line or "runpy" in line for line in lines)
    assert lines[-1] == "ValueError: Graph execution error: indices[0] = 10 is not in [0, 10)"
    full_text = full.read_text()
    assert "raise_it" in full_text
    assert "site-packages" in full_text


def test_innermost_frame_replaces_user_frames(model_dir: Path) -> None:
    lines, full = formatted(fail(KERAS_3), model_dir)
    assert lines[0] == "Traceback (raised outside your code):"
    assert [line for line in lines if line.startswith("  File")] == [
        line for line in lines if line.endswith(", in raise_it")
    ]
    assert lines[-1].endswith("is incompatible with the layer: expected axis -1")
    assert full.exists()


def test_syntax_error_has_no_import_frames(model_dir: Path) -> None:
    broken = model_dir / "broken_model.py"
    broken.write_text("def build(self -> None:\n    pass\n")
    lines, full = formatted(lambda: importlib.import_module("broken_model"), model_dir)
    assert lines == [
        f'  File "{broken}", line 1',
        "    def build(self -> None:",
        "                   ^^",
        "SyntaxError: invalid syntax",
    ]
    assert "importlib" in full.read_text()


def test_cause_is_last_after_empty_lines(model_dir: Path) -> None:
    lines, _ = formatted(fail(f"{GRAPH}\nSee the guide.\n \n\n"), model_dir)
    assert lines[-1].endswith("Graph execution error: indices[0] = 10 is not in [0, 10)")


def test_user_code_in_detcore_error_is_shown(own: ModuleType, model_dir: Path) -> None:
    file = model_dir / "own_model.py"
    quoted = f'\nTraceback (most recent call last):\n  File "{file}", line 9, in row\nKeyError: 5'

    def load(cause: Exception) -> None:
        raise DataError("the dataset failed.\nCorrect it.") from cause

    def read_here() -> None:
        try:
            own.call(fail("no such row"))
        except ValueError as error:
            load(error)

    lines, full = formatted(read_here, model_dir)
    assert lines[:2] == [
        "Traceback (your code, most recent call last):",
        f'  File "{file}", line 3, in call',
    ]
    assert lines[-5:] == [
        "ValueError: no such row", "", "which led to:", "", "DataError: the dataset failed.",
        "Correct it.",
    ][-5:]  # fmt: skip
    assert "raise_it" in full.read_text()
    lines, _ = formatted(lambda: load(RuntimeError(quoted)), model_dir)
    assert f'  File "{file}", line 9, in row' in lines
    assert lines[lines.index("which led to:") - 2] == "KeyError: 5"

    def read_item() -> None:
        try:
            own.call(fail("no such row"))
        except ValueError as error:
            raise DataError(f"item 3 failed.{quoted}") from error

    assert "which led to:" not in formatted(read_item, model_dir)[0]
    assert formatted(lambda: load(KeyError(5)), model_dir)[0] == [
        "DataError: the dataset failed.", "Correct it.",
    ]  # fmt: skip


def test_chain_ends_with_final_error(own: ModuleType, model_dir: Path) -> None:
    lines, _ = formatted(lambda: own.helper(fail("first")), model_dir)
    assert "ValueError: first" in lines
    assert lines.index("ValueError: first") < lines.index("which led to:")
    assert lines[-1] == "RuntimeError: in the helper"


def test_traceback_is_complete_if_file_fails(model_dir: Path) -> None:
    (model_dir.parent / "trial").write_text("no folder")
    lines, full = formatted(fail("short"), model_dir)
    assert not full.exists()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: short"


def test_detcore_error_has_only_user_frames(own: ModuleType, model_dir: Path) -> None:
    def refuse() -> None:
        raise ConfigError("the file is wrong.\nCorrect it.")

    lines, full = formatted(lambda: own.call(refuse), model_dir)
    assert lines[-2:] == ["ConfigError: the file is wrong.", "Correct it."]
    assert not full.exists()
    assert formatted(refuse, model_dir)[0] == lines[-2:]


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to"), True),
        (RuntimeError("shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_out_of_memory_errors_are_recognized(error: Exception, is_memory: bool) -> None:
    assert _is_out_of_memory(error) is is_memory


class UnavailableError(Exception):
    """The TensorFlow error for unavailable remote files."""


@pytest.mark.parametrize(
    ("error", "is_certain"),
    [
        (ConnectionError("reset"), False),
        (UnavailableError("gs://bucket: 503"), False),
        (FileNotFoundError("data.csv"), True),
        (TypeError("my mistake"), True),
    ],
)
def test_external_errors_do_not_blame_user_code(error: Exception, is_certain: bool) -> None:
    reported = DataError("the dataset failed")
    reported.__cause__ = error
    for each_line in (error, reported):
        outcome = derive_outcome(each_line, is_preempted=False, early_exit=None)
        assert (outcome.fault is not None) is is_certain
