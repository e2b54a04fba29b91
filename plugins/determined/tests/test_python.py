"""Migration of modules: only Determined's names change."""

from __future__ import annotations

import ast
import io
import re
import sys
import textwrap
import tokenize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detcore_determined.migrate import Migrated, migrate_python


def migrate(source: str) -> Migrated:
    """Migrate, and check that a second migration has the same findings and no changes."""
    migrated = migrate_python(source)
    again = migrate_python(migrated.text)
    assert again.text == migrated.text
    assert again.num_changes == 0
    assert {item for item in migrated.remaining if item.kind == "left"} == {
        item for item in again.findings if item.kind == "left"
    }
    ast.parse(migrated.text)
    return migrated


def left(source: str) -> list[str]:
    return [item.name for item in migrate(source).findings if item.kind == "left"]


# One case per line: old and new text.
IMPORTS = """
from determined.keras import TFKerasTrial => from detcore_keras import TFKerasTrial
from determined.keras import TFKerasTrial as T => from detcore_keras import TFKerasTrial as T
from determined.keras import (TFKerasTrial,) => from detcore_keras import (TFKerasTrial,)
from  determined . keras  import  TFKerasTrial  # x => from  detcore_keras  import  TFKerasTrial  # x
from determined.keras.callbacks import EarlyStopping => from detcore_keras.callbacks import EarlyStopping
from determined.keras._data import SequenceAdapter => from detcore_keras import SequenceAdapter
from determined.keras import TensorBoard => from detcore_keras.callbacks import TensorBoard
from determined.keras import TFKerasContext => from detcore_keras import TFKerasTrialContext as TFKerasContext
from determined.estimator import RunHook, EstimatorTrial => from detcore_estimator import RunHook, EstimatorTrial
from determined.pytorch import PyTorchTrial, DataLoader => from detcore_torch import PyTorchTrial, DataLoader
from determined import core => from detcore import core
from determined import core as c, keras as k => from detcore import core as c|import detcore_keras as k
from determined import keras => import detcore_keras as keras
from determined import pytorch, experimental => from detcore import experimental|import detcore_torch as pytorch
from determined import InvalidHP, TrialContext => from detcore import InvalidHP, TrialContext
from determined.experimental import Determined => from detcore.experimental import Determined
from determined.experimental import client => from detcore import experimental as client
from determined.experimental.client import Determined, Trial => from detcore.experimental import Determined, TrialReference as Trial
from determined.common.experimental.checkpoint import Checkpoint => from detcore.experimental import Checkpoint
from determined_common.experimental import Determined => from detcore.experimental import Determined
from determined.common.experimental.experiment import Experiment => from detcore.experimental import ExperimentReference as Experiment
from determined.common.experimental.trial import Trial => from detcore.experimental import TrialReference as Trial
from determined_common.experimental.model import Model => from detcore.experimental import Model
from determined._core import DistributedContext => from detcore.core import DistributedContext
from determined.experimental import Trial, Model => from detcore.experimental import TrialReference as Trial, Model
from determined.errors import InvalidModelException => from detcore.errors import InvalidModelException
from determined.experimental.keras import init => from detcore.experimental.keras import init
from determined.keras import InputData => from typing import Any as InputData
from determined.keras import TFKerasTrial, InputData as I => from detcore_keras import TFKerasTrial|from typing import Any as I
import determined => import detcore
import determined as det => import detcore as det
import determined.keras => import detcore_keras
import determined.keras as dk => import detcore_keras as dk
import determined.experimental.client as client => import detcore.experimental as client
import os, determined as det, sys => import os, detcore as det, sys
import os; import determined.core as core; x = 1 => import os; import detcore.core as core; x = 1
if x: from determined import keras, core => if x: from detcore import core; import detcore_keras as keras
""".strip().splitlines()  # noqa: E501  (a table)


@pytest.mark.parametrize("case", IMPORTS)
def test_an_import_statement(case: str) -> None:
    old, new = (side.replace("|", "\n") for side in case.split(" => "))
    assert migrate(f"{old}\n").text == f"{new}\n"


# Uses of `det`, and the added imports.
USES = """
det.core.init() => det.core.init() + detcore as det
det.keras.TFKerasTrial => detcore_keras.TFKerasTrial + detcore_keras
det.keras.callbacks.EarlyStopping(3) => detcore_keras.callbacks.EarlyStopping(3) + detcore_keras.callbacks
det.InvalidHP => det.InvalidHP + detcore as det
det.experimental.client.get_trial(3).hparams => det.experimental.Determined().get_trial(3).hparams + detcore as det
det.LOG_FORMAT => logging.BASIC_FORMAT + logging
det.__version__ => det.__version__ + detcore as det
det.estimator.MetricReducer.accumulate => detcore_estimator.MetricReducer.accumulate + detcore_estimator
det.core._distributed.DistributedContext => det.core.DistributedContext + detcore as det
det.experimental.create(det.keras.TFKerasTrial) => det.experimental.create(detcore_keras.TFKerasTrial) + detcore as det|detcore_keras
f(det) => f(det) + detcore as det
""".strip().splitlines()  # noqa: E501  (a table)


@pytest.mark.parametrize("case", USES)
def test_a_use_of_the_package(case: str) -> None:
    old, new, imported = re.split(r" => | \+ ", case)
    lines = [f"import {module}" for module in imported.split("|")]
    migrated = migrate(f"import determined as det\n\nx = {old}\n")
    assert migrated.text == "\n".join([*lines, "", f"x = {new}", ""])


def test_plain_imports_of_modules_share_their_root() -> None:
    old = """
        import determined
        import determined.keras

        class T(determined.keras.TFKerasTrial):
            def __init__(self, context):
                with determined.core.init() as core:
                    pass
        """
    new = """
        import detcore
        import detcore_keras

        class T(detcore_keras.TFKerasTrial):
            def __init__(self, context):
                with detcore.core.init() as core:
                    pass
        """
    assert migrate(textwrap.dedent(old)).text == textwrap.dedent(new)


def test_import_without_remaining_uses_stays() -> None:
    for line in ("import determined as det", "import determined"):
        name = line.split()[-1]
        old = f"import logging\n{line}\nx = {name}.LOG_FORMAT\n"
        new = old.replace("determined as", "detcore as").replace("determined\n", "detcore\n")
        assert migrate(old).text == new.replace(f"{name}.LOG_FORMAT", "logging.BASIC_FORMAT")


@pytest.mark.parametrize("more", ["del det", "__all__ = ['det']", "det = None"])
def test_name_with_other_uses_stays_bound(more: str) -> None:
    new = migrate(f"import determined as det\nx = det.keras.TFKerasTrial\n{more}\n").text
    assert new == (
        f"import detcore as det\nimport detcore_keras\nx = detcore_keras.TFKerasTrial\n{more}\n"
    )


def test_scopes_follow_python() -> None:
    old = """
        import determined as det
        from determined import keras


        def f(det):
            return det.keras.TFKerasTrial

        def g():
            det = 3
            return det.keras, lambda keras: keras.TFKerasContext, keras.TFKerasContext

        class C:
            det = 1
            a = det.keras
            def m(self):
                return det.keras.TFKerasTrial

        h = [det.keras for det in range(3)]
        i = [x for x in det.keras.callbacks.__all__]
        self.det.keras.TFKerasTrial
        """
    new = migrate(textwrap.dedent(old)).text
    assert "    return det.keras.TFKerasTrial\n\ndef g" in new
    assert "return det.keras, lambda keras: keras.TFKerasContext, keras.TFKerasTrialContext" in new
    assert "    a = det.keras\n" in new
    assert "        return detcore_keras.TFKerasTrial\n" in new
    assert "h = [det.keras for det in range(3)]" in new
    assert "self.det.keras.TFKerasTrial" in new


def test_imports_in_functions_try_and_type_checking() -> None:
    old = """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from determined.keras import TFKerasTrialContext
        try:
            import determined as det
        except ImportError:
            det = None

        def make(context: "TFKerasTrialContext", other: "list[det.keras.SequenceAdapter]"):
            from determined.experimental import client  # late
            if det is not None:
                return det.keras.TFKerasTrial, client.get_model("m")
        """
    new = """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from detcore_keras import TFKerasTrialContext
        try:
            import detcore as det
            import detcore_keras
        except ImportError:
            det = None

        def make(context: "TFKerasTrialContext", other: "list[detcore_keras.SequenceAdapter]"):
            from detcore import experimental as client  # late
            if det is not None:
                return detcore_keras.TFKerasTrial, client.Determined().get_model("m")
        """
    assert migrate(textwrap.dedent(old)).text == textwrap.dedent(new)


def test_client_functions_become_methods() -> None:
    old = (
        "from determined.experimental.client import get_experiment, get_trial as gt\n"
        "print(get_experiment(3).top_checkpoint(), map(gt, ids))\n"
    )
    assert migrate(old).text == (
        "from detcore.experimental import Determined\n"
        "print(Determined().get_experiment(3).top_checkpoint(), map(Determined().get_trial, ids))\n"
    )


def test_missing_names_keep_import_and_are_reported() -> None:
    old = textwrap.dedent("""
        import determined as det
        from determined.keras import (
            TFKerasTrial,  # the class
            InMemorySequence,  # the data
            InputData,
        )
        from determined.util import merge_dicts

        names = det.gpu.get_gpu_uuids()
        core = det.core.init()
        """)
    migrated = migrate(old)
    assert migrated.text == textwrap.dedent("""
        import determined as det
        import detcore
        # the class
        # the data
        from detcore_keras import TFKerasTrial
        from determined.keras import InMemorySequence
        from typing import Any as InputData
        from determined.util import merge_dicts

        names = det.gpu.get_gpu_uuids()
        core = detcore.core.init()
        """)
    assert [(item.line, item.column, item.name) for item in migrated.findings] == [
        (5, 5, "determined.keras.InMemorySequence"),
        (8, 29, "determined.util"),
        (10, 9, "determined.gpu"),
    ]
    assert [item.line for item in migrated.remaining] == [7, 9, 11]
    assert "query the framework" in migrated.findings[2].advice


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from determined import util\n", ["determined.util"]),
        ("import determined.util\n", ["determined.util"]),
        ("import determined.pytorch.deepspeed as d\n", ["determined.pytorch.deepspeed"]),
        ("from determined.searcher.search_method import Close\n", ["determined.searcher"]),
        ("from determined.keras import Unheard\n", ["determined.keras.Unheard"]),
        ("from determined.keras import _private\n", ["determined.keras._private"]),
        ("from determined.no.such import thing\n", ["determined.no"]),
        ("from determined.common.experimental import ModelVersion\n",
         ["determined.experimental.client.ModelVersion"]),
        ("from determined.experimental import CheckpointState\n",
         ["determined.experimental.client.CheckpointState"]),
        ("from determined.experimental import checkpoint\n",
         ["determined.experimental.checkpoint"]),
        ("from determined.experimental.client import login\nlogin()\n",
         ["determined.experimental.client.login"]),
        ("from model_hub.mmdetection import MMDetTrial\n", ["model_hub"]),
        ("from determined.util import *\n", ["determined.util.*"]),
        ("from determined.keras import *\n", ["determined.keras.*"]),
        ("import determined as det\nx = getattr(det, 'keras')\n", []),
    ],
)  # fmt: skip
def test_other_constructs_are_reported_and_unchanged(source: str, names: list[str]) -> None:
    assert left(source) == names
    migrated = migrate(source)
    assert all(finding.problem and finding.advice for finding in migrated.findings)
    if names:
        assert migrated.text == source


@pytest.mark.parametrize(
    "source",
    [
        "from .determined import keras\n",
        "from determined_by_us import keras\n",
        "import undetermined as det\ndet.keras.TFKerasTrial\n",
        "determined = 3\ndetermined.keras\n",
        '"""from determined.keras import TFKerasTrial, see docs.determined.ai"""\n',
        "# import determined\n",
        "url = 'https://docs.determined.ai/latest'\nx = 'as determined by us'\n",
        "",
        "\n",
    ],
)
def test_lookalikes_are_unchanged(source: str) -> None:
    migrated = migrate(source)
    assert migrated.text == source
    assert migrated.findings == ()


def test_existing_name_is_not_overwritten() -> None:
    source = "import determined as det\nlogging = 3\nx = det.LOG_FORMAT\n"
    migrated = migrate(source)
    assert migrated.text == source
    assert "'logging' is taken here" in migrated.findings[0].problem


def test_ambiguous_name_is_reported() -> None:
    source = (
        "try:\n    from determined import keras as m\nexcept ImportError:\n"
        "    from determined import estimator as m\nx = m.init\n"
    )
    assert migrate(source).text == source
    assert len(left(source)) == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("python3 -m determined.launch.torch_distributed python3 train.py --lr 3",
         "python3 train.py --lr 3"),
        ("python3 -m determined.launch.torch_distributed --trial model_def:T", "model_def:T"),
        ("python3 -m determined.launch.horovod --fusion-threshold-mb 1 -- --trial m:T", "m:T"),
        ("python3 -m determined.launch.horovod python3 -m determined.exec.harness m:T", "m:T"),
        ("python3 -m determined.launch.torch_distributed -- python3 fsdp.py", "python3 fsdp.py"),
        ("python -m determined.launch.torch_distributed --nnodes 1 --trial m:T", "m:T"),
        ("model_def:T", "model_def:T"),
        ("python3 -m determined.launch.torch_distributed --odd", None),
        ("python3 -m determined.launch.deepspeed --trial m:T", None),
    ],
)  # fmt: skip
def test_entrypoints(old: str, new: str | None) -> None:
    for form in (
        'c = {{"entrypoint": {0!r}}}\n',
        'c["entrypoint"] = {0!r}\n',
        "f(entrypoint={0!r})\n",
    ):
        migrated = migrate(form.format(old))
        assert migrated.text == form.format(new or old)
        assert bool(migrated.findings) is (new is None)


def test_strings_with_module_names() -> None:
    source = (
        "import importlib, os\n"
        "m = importlib.import_module('determined.keras')\n"
        "with patch('determined.keras.TFKerasTrial.build_model'): pass\n"
        "os.environ['DET_MASTER'], os.environ['DET_TRIAL_ID']\n"
        "subprocess.run(['python3', '-m', 'determined.cli', 'x'])\n"
        "det = pytest.importorskip('determined')\n"
    )
    migrated = migrate(source)
    assert migrated.text == source
    assert [(item.line, item.name) for item in migrated.findings] == [
        (2, "determined.keras"), (3, "determined.keras.TFKerasTrial.build_model"),
        (4, "DET_MASTER"), (4, "DET_TRIAL_ID"), (5, "determined.cli"), (6, "determined"),
    ]  # fmt: skip


def test_strings_as_type_annotations() -> None:
    old = """
        import typing
        from typing import Annotated, Literal, Optional, TypeVar, cast
        import determined as det
        T = TypeVar("T", bound="det.keras.TFKerasTrial")
        U = typing.TypeVar("U", "det.core.Context", int)
        a = typing.cast("det.pytorch.DataLoader", 1), cast(int, "det.keras")
        b = Optional["list[det.core.Context]"], table["det.core"]
        c: Literal["det.core"] = "det.core"
        d: Annotated["det.core.Context", "det.core"]
        """
    assert migrate(textwrap.dedent(old)).text == textwrap.dedent("""
        import typing
        from typing import Annotated, Literal, Optional, TypeVar, cast
        import detcore
        import detcore_keras
        import detcore_torch
        T = TypeVar("T", bound="detcore_keras.TFKerasTrial")
        U = typing.TypeVar("U", "detcore.core.Context", int)
        a = typing.cast("detcore_torch.DataLoader", 1), cast(int, "det.keras")
        b = Optional["list[detcore.core.Context]"], table["det.core"]
        c: Literal["det.core"] = "det.core"
        d: Annotated["detcore.core.Context", "det.core"]
        """).replace("import detcore\n", "import detcore as det\n").replace(
        "detcore.core.Context", "det.core.Context"
    )


@pytest.mark.parametrize(
    "code",
    [
        "importlib.util.find_spec('determined') is not None",
        "'determined' in sys.modules",
        "sys.modules['determined']",
        "sys.modules.get('determined')",
        "importlib.metadata.version('determined')",
        "pkg_resources.get_distribution('determined')",
        "logging.getLogger('determined')",
        "importlib.util.find_spec(name='determined')",
    ],
)
def test_package_lookup_by_name_is_reported(code: str) -> None:
    assert left(f"x = {code}\n") == ["determined"]
    assert migrate(f"x = {code}\n").text == f"x = {code}\n"
    assert left(f"x = {code}\n".replace("determined", "determined_by_us")) == []


@pytest.mark.parametrize("code", ["c['entrypoint'] = f'{}'", "run(f'{}')", "x = f'{{y:{}}}'"])
def test_a_launcher_in_an_f_string_is_reported(code: str) -> None:
    command = "python3 -m determined.launch.horovod {script}"
    assert left(code.format(command) + "\n") == ["determined.launch.horovod"]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import determined as det\nx = det.core.DistributedContext.from_tf_config()\n",
         "determined.core.DistributedContext.from_tf_config"),
        ("from determined.core import DistributedContext as D\nx = D.from_tf_config()\n",
         "determined.core.DistributedContext.from_tf_config"),
        ("from determined.experimental import TrialSortBy\nx: 'TrialSortBy.DURATION'\n",
         "determined.experimental.client.TrialSortBy.DURATION"),
        ("from determined.experimental import client\nclient.CheckpointSortBy.STATE\n",
         "determined.experimental.client.CheckpointSortBy.STATE"),
    ],
)  # fmt: skip
def test_missing_member_keeps_import(source: str, name: str) -> None:
    assert migrate(source).text == source
    assert left(source) == [name]
    (finding,) = migrate(source).findings
    assert finding.line == 2


def test_existing_members_follow_class() -> None:
    old = "from determined.core import DistributedContext as D\nx = D.from_horovod, D.rank\n"
    assert migrate(old).text == old.replace("determined", "detcore")


def test_cluster_variables_are_reported() -> None:
    names = ["DET_TASK_ID", "DET_CLUSTER_ID", "DET_USE_GPU"]
    source = f"import os\nx = {[*names, 'DET_CHIEF_IP', 'DET_MINE']!r}\n"
    assert left(source) == names


# -- odd input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_line_ends_tabs_and_continuations_are_kept(line_end: str) -> None:
    old = (
        "if True:\n\timport determined as det\n\tfrom determined.keras \\\n\t\timport \\\n"
        "\t\tTFKerasTrial, \\\n\t\tInputData\n"
        "\tx = (det\n\t\t.keras\n\t\t.TFKerasTrial, 'ä', det.core)\n"
    )
    new = migrate(old.replace("\n", line_end)).text
    assert new.replace(line_end, "\n") == (
        "if True:\n\timport detcore as det\n\timport detcore_keras\n"
        "\tfrom detcore_keras import TFKerasTrial\n\tfrom typing import Any as InputData\n"
        "\tx = (detcore_keras.TFKerasTrial, 'ä', det.core)\n"
    )


def test_columns_count_wide_characters() -> None:
    migrated = migrate("import determined as det\nx = ('äöü𝔘', det.keras.TFKerasTrial, det.util)\n")
    assert "('äöü𝔘', detcore_keras.TFKerasTrial, det.util)" in migrated.text
    (finding,) = migrated.findings
    assert (finding.line, finding.column) == (2, 38)


def test_attribute_chain_with_comment_is_reported() -> None:
    source = "import determined as det\nx = (det.  # why\n     keras.TFKerasTrial)\n"
    migrated = migrate(source)
    assert migrated.text == source
    assert "unusual" in migrated.findings[0].problem


def test_names_in_f_strings_are_rewritten_or_reported() -> None:
    source = "import determined as det\nx = f'{det.keras.TFKerasTrial} {1 + 1}'\n"
    migrated = migrate(source)
    if sys.version_info >= (3, 12) or migrated.findings == ():
        assert "f'{detcore_keras.TFKerasTrial} {1 + 1}'" in migrated.text
    else:
        assert migrated.text == source


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("from determined import (\n", "not valid Python"),
        ("print 'hello'\n", "not valid Python"),
        ("x = 1\n\ty = 2\n", "not valid Python"),
        ("a\0b", "null bytes"),
        ("import determined\rx = 1\r", "line ends"),
        ("import determined\n\x0cx = 1\n", "form feeds"),
        ("import determined\nnonlocal x\n", "nonlocal"),
        (f"import determined\nx = {' + '.join(map(str, range(1500)))}\n", "nested"),
        (f"import determined\nx = '{'a' * 1_000_000}'\n", "characters"),
        ("(" * 5000 + ")" * 5000, "Python"),
    ],
)
def test_invalid_python_is_an_error_with_position(source: str, problem: str) -> None:
    migrated = migrate_python(source)
    assert migrated.text == source
    (finding,) = migrated.findings
    assert finding.kind == "error"
    assert problem in finding.problem
    assert finding.line >= 1


def test_a_long_module_is_rewritten() -> None:
    classes = "".join(f"class T{n}(det.keras.TFKerasTrial): pass\n" for n in range(1000))
    migrated = migrate_python(f"import determined as det\n{classes}")
    assert migrated.num_changes == 1001
    assert "det.keras" not in migrated.text


# -- any order of such statements -----------------------------------------------------------------

LINES = [
    "import determined as det", "import determined", "import determined.keras as dk, os",
    "from determined.keras import TFKerasTrial, InputData  # the class",
    "from determined import keras, core", "from determined.experimental import client, Determined",
    "from determined.experimental.client import get_trial, login",
    "from determined.keras import (  # why\n    TFKerasTrial as T,  # this\n"
    "    InMemorySequence,\n)",
    "x = det.keras.TFKerasTrial, det.util.merge", "y = determined.core.init, dk.SequenceAdapter",
    "det = 3", "def f(det): return det.keras", "z = keras.callbacks.EarlyStopping, get_trial(3)",
    "def g():\n    import determined as det\n    return det.estimator.RunHook",
    "class C(det.keras.TFKerasTrial):\n    import determined\n"
    "    x: 'det.core.Context' = determined.core",
    "client.get_trial(3); client.login()", "del det", "global det",
    "try:\n    import determined.util\nexcept ImportError: pass", "w = [det.core for det in dk.x]",
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(LINES), min_size=1, max_size=9), st.sampled_from(["\n", "\r\n"]))
def test_any_module_keeps_comments_and_is_idempotent(lines: list[str], line_end: str) -> None:
    source = "\n".join([*lines, ""]).replace("\n", line_end)
    new = migrate(source).text
    assert comments(new) == comments(source)
    if line_end == "\r\n":
        assert "\n" not in new.replace("\r\n", "")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["TFKerasTrial", "TFKerasTrialContext", "InputData", "ArrayLike",
                             "InMemorySequence", "callbacks", "TensorBoard", "Unheard"]),
            st.sampled_from(["", " as a", " as b", " as  c"]),
            st.sampled_from(
                [", ", ",", ",\n    ", "  # one, two\n    , ", ",  # ) three\n", " ,\n\n"]
            ),
        ),
        min_size=1, max_size=6,
    ),
    st.booleans(),
)  # fmt: skip
def test_any_import_layout_binds_same_names(
    items: list[tuple[str, str, str]], has_last_comma: bool
) -> None:
    inside = "".join(f"{name}{local}{comma}" for name, local, comma in items[:-1])
    name, local, comma = items[-1]
    inside += f"{name}{local}{comma if has_last_comma else ''}"
    source = f"x = 1\nfrom determined.keras import (  # all\n    {inside})  # end\ny = 2\n"
    new = migrate(source).text
    assert comments(new) == comments(source)
    assert bound(new) == bound(source)


def bound(source: str) -> set[str]:
    """Return the names that the imports of a module bind."""
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.alias))
    return {node.asname or node.name for node in nodes}


def comments(source: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sorted(token.string for token in tokens if token.type == tokenize.COMMENT)


def test_many_blank_lines_are_read_in_linear_time() -> None:
    """20,000 blank lines once took minutes."""
    blanks = " " * 100_000
    source = f"from determined{blanks}.keras import TFKerasTrial\n"
    assert migrate_python(source).text == "from detcore_keras import TFKerasTrial\n"
