"""Names that the newest TensorFlow lacks, and settings of early releases."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from detcore.cli import main
from detcore_determined.migrate import migrate_config, migrate_python
from detcore_determined.migrate.tensorflow_names import needs_old_tensorflow

SEARCH = "entrypoint: model_def:T\nsearcher: {name: single, metric: loss, "
ESTIMATOR, LEGACY = "tensorflow.estimator", "tensorflow.keras.optimizers.legacy"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import tensorflow as tf\ntf.estimator.Estimator(f)", ESTIMATOR),
        ("import tensorflow\ntensorflow.estimator.RunConfig()", ESTIMATOR),
        ("from tensorflow import estimator", ESTIMATOR),
        ("from tensorflow.estimator import Estimator", ESTIMATOR),
        ("import tensorflow as tf\ntf.compat.v1.estimator", "tensorflow.compat.v1.estimator"),
        ("import tensorflow as tf\ntf.keras.optimizers.legacy.Adam(1e-3)", LEGACY),
        ("from keras.optimizers.legacy import SGD", LEGACY),
        ("from keras import optimizers as o\no.legacy.SGD()", LEGACY),
        ("from tensorflow.keras.optimizers import legacy", LEGACY),
        ("import tensorflow_estimator as tfe", "tensorflow_estimator"),
        (
            "import tensorflow.compat.v1 as tf1\ntf1.layers.dense(x, 1)",
            "tensorflow.compat.v1.layers",
        ),
    ],
)
def test_removed_names_are_reported_with_tensorflow(source: str, name: str) -> None:
    migrated = migrate_python(source)
    assert migrated.text == source
    assert [finding.name for finding in migrated.findings] == [name]
    (finding,) = migrated.findings
    assert finding.kind == "left"
    assert needs_old_tensorflow(finding)
    assert 'install "tensorflow==2.15.*"' in finding.advice


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "from tensorflow.python.keras.layers import Dense, Dropout  # x",
            "from tensorflow.keras.layers import Dense, Dropout  # x",
        ),
        ("from tensorflow.python.keras import layers", "from tensorflow.keras import layers"),
        ("from tensorflow.python import keras", "from tensorflow import keras"),
        ("import tensorflow.python.keras as k\nk.layers", "import tensorflow.keras as k\nk.layers"),
        (
            "from tensorflow.python.keras.utils.data_utils import Sequence, get_file",
            "from tensorflow.keras.utils import Sequence, get_file",
        ),
        (
            "from tensorflow.python.keras.utils import data_utils\ndata_utils.get_file('x')",
            "from tensorflow.keras import utils as data_utils\ndata_utils.get_file('x')",
        ),
        (
            "import tensorflow.python.keras.layers.core as core\ncore.Dense(1), core.Dropout.call",
            "import tensorflow.keras.layers as core\ncore.Dense(1), core.Dropout.call",
        ),
        (
            "from tensorflow.python.keras.engine.training import Model as M",
            "from tensorflow.keras import Model as M",
        ),
        (
            "from tensorflow.python.keras.optimizer_v2.adam import Adam",
            "from tensorflow.keras.optimizers import Adam",
        ),
        (
            "from keras.utils.np_utils import to_categorical",
            "from keras.utils import to_categorical",
        ),
        ("from tensorflow.python.keras import utils\ndef f(utils): utils.mine",
         "from tensorflow.keras import utils\ndef f(utils): utils.mine"),
        ("from keras.utils import np_utils\nnp_utils.normalize(x)",
         "from keras import utils as np_utils\nnp_utils.normalize(x)"),
    ],
)  # fmt: skip
def test_import_becomes_public_keras_name(old: str, new: str) -> None:
    migrated = migrate_python(old)
    assert (migrated.text, migrated.findings) == (new, ())


@pytest.mark.parametrize("package", ["tensorflow.python.keras", "keras", "tensorflow.keras"])
def test_function_without_public_name_gets_note(package: str) -> None:
    migrated = migrate_python(f"from {package}.datasets.cifar import load_batch\n")
    assert migrated.text == "from keras.src.datasets.cifar import load_batch\n"
    (note,) = migrated.findings
    assert (note.kind, note.name) == ("note", "keras.src.datasets.cifar.load_batch")


@pytest.mark.parametrize(
    ("source", "advice"),
    [
        ("from tensorflow.python.keras.engine import data_adapter", "copy the code"),
        ("from tensorflow.python.keras.layers import *", "write tensorflow.keras.layers"),
        ("import tensorflow.python.keras.layers", "write tensorflow.keras.layers"),
        ("import tensorflow as t\nt.python.keras.layers.Dense", "write tensorflow.keras.layers.D"),
        (
            "from tensorflow.python.keras import layers\nlayers.core.Dense(1)",
            "write tensorflow.keras.layers.Dense",
        ),
        (
            "from tensorflow.python.keras.utils import losses_utils as u\nu.reduce(x)",
            "no public module has 'reduce'",
        ),
        (
            "from tensorflow.python.keras.engine import x\nx.mse(1)",
            "write tensorflow.keras.losses.mse or tensorflow.keras.metrics.mse",
        ),
        ("from keras.layers.recurrent import Cell", "no public module has 'Cell'"),
        ("import keras.layers.core", "no public module has 'core'"),
        (
            "from tensorflow import keras\nkeras.backend.set_session(s)",
            "write tf.compat.v1.keras.backend.set_session",
        ),
        ("import tensorflow as tf\ntf.keras.utils.np_utils.x", "no public module has 'np_utils'"),
    ],
)  # fmt: skip
def test_import_without_certain_replacement_is_unchanged(source: str, advice: str) -> None:
    migrated = migrate_python(source)
    assert migrated.text == source
    (finding,) = migrated.findings
    assert finding.kind == "left"
    assert advice in finding.advice
    assert not needs_old_tensorflow(finding)


@pytest.mark.parametrize("version", ["", "compat.v1."])
def test_boosted_trees_do_not_need_old_tensorflow(version: str) -> None:
    name = f"{version}estimator.BoostedTreesClassifier"
    (finding,) = migrate_python(f"import tensorflow as tf\ntf.{name}(columns)").findings
    assert finding.name == f"tensorflow.{name}"
    assert "neither" in finding.problem
    assert not needs_old_tensorflow(finding)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import tensorflow as tf\ntf.keras.layers.LocallyConnected1D(1, 1)", "LocallyConnected1D"),
        ("from tensorflow.keras.layers.experimental import preprocessing", "experimental"),
        ("from tensorflow.keras.layers import DenseFeatures", "DenseFeatures"),
    ],
)
def test_name_of_older_keras_is_reported(source: str, name: str) -> None:
    (finding,) = migrate_python(source).findings
    assert finding.name == f"tensorflow.keras.layers.{name}"
    assert needs_old_tensorflow(finding)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("from tensorflow.keras import optimizers as o\no.SGD(lr=1), f(lr=3)",
         "from tensorflow.keras import optimizers as o\no.SGD(learning_rate=1), f(lr=3)"),
        ("import tensorflow as tf\ntf.keras.optimizers.Adam(\n    1,\n    decay=d(2),\n)",
         "import tensorflow as tf\ntf.keras.optimizers.Adam(\n    tf.keras.optimizers.schedules."
         "InverseTimeDecay(1, decay_steps=1, decay_rate=d(2)),\n)"),
        ("from keras.optimizers import (\n    SGD,\n    Adam as A,\n)\n"
         "A(beta_1=0, lr=r, decay=2), A(decay=0, lr=1)",
         "from keras.optimizers import SGD, Adam as A, schedules\n"
         "A(beta_1=0, learning_rate=schedules.InverseTimeDecay(r, decay_steps=1, decay_rate=2)), "
         "A(learning_rate=schedules.InverseTimeDecay(1, decay_steps=1, decay_rate=0))"),
        ("from tensorflow.python.keras.optimizer_v2 import adam\nadam.Adam(lr=1, decay=2)",
         "from tensorflow.keras import optimizers as adam\n"
         "adam.Adam(learning_rate=adam.schedules.InverseTimeDecay(1, decay_steps=1, "
         "decay_rate=2))"),
        ("import tensorflow as tf\ntf.optimizers.SGD(lr=1, decay=2)",
         "import tensorflow as tf\ntf.optimizers.SGD(learning_rate=tf.optimizers.schedules."
         "InverseTimeDecay(1, decay_steps=1, decay_rate=2))"),
        ("from keras.optimizers import SGD, Adam\nSGD(1, decay=2), Adam(3, decay=4)",
         "from keras.optimizers import SGD, schedules, Adam\n"
         "SGD(schedules.InverseTimeDecay(1, decay_steps=1, decay_rate=2)), "
         "Adam(schedules.InverseTimeDecay(3, decay_steps=1, decay_rate=4))"),
        ("from tensorflow.keras.optimizers.legacy import SGD\nSGD(lr=1, decay=2)",
         "from tensorflow.keras.optimizers.legacy import SGD\nSGD(learning_rate=1, decay=2)"),
        ("if new:\n    from keras.optimizers.legacy import SGD\nelse:\n"
         "    from keras.optimizers import SGD\nSGD(lr=1, decay=2)",
         "if new:\n    from keras.optimizers.legacy import SGD\nelse:\n"
         "    from keras.optimizers import SGD\nSGD(learning_rate=1, decay=2)"),
    ],
)  # fmt: skip
def test_keyword_of_an_optimizer_is_replaced(old: str, new: str) -> None:
    assert migrate_python(old).text == new


def test_arguments_of_compile_get_names() -> None:
    source = "import tensorflow as tf\nm.compile(o, l, ['a'], [1]), m.compile(o, l, metrics=[]), "
    source += "re.compile('x', 0), m.compile(*a)"
    migrated = migrate_python(source)
    assert "m.compile(o, l, metrics=['a'], loss_weights=[1]), " in migrated.text
    assert migrated.text.endswith("m.compile(o, l, metrics=[]), re.compile('x', 0), m.compile(*a)")
    assert migrate_python(f"x\n{source.partition(chr(10))[2]}").num_changes == 0


@pytest.mark.parametrize(
    "source",
    [
        "from keras.optimizers import SGD\nschedules = []\n",
        "try:\n    from tensorflow.keras.optimizers import SGD\n"
        "except ImportError:\n    from keras.optimizers import SGD\n",
        "if fast:\n    from own import SGD\nelse:\n    from keras.optimizers import SGD\n",
        "if fast:\n    SGD = own.SGD\nelse:\n    from keras.optimizers import SGD\n",
    ],
)
def test_decay_is_reported_without_schedule_import(source: str) -> None:
    call = "SGD(0.1, decay=rate)"
    migrated = migrate_python(source + call)
    assert migrated.text == source + call
    (finding,) = migrated.findings
    assert (finding.line, finding.name) == (source.count("\n") + 1, "decay")
    assert "schedules.InverseTimeDecay(0.1, decay_steps=1, decay_rate=rate)" in finding.advice


@pytest.mark.parametrize(
    ("source", "obstacle"),
    [
        ("from determined.keras.callbacks import ReduceLROnPlateau\n", "ReduceLROnPlateau"),
        ("tf.keras.callbacks.LearningRateScheduler(f)\n", "LearningRateScheduler"),
        ("def f(m): m.optimizer.lr = 3\n", "m.optimizer.lr"),
        ("def f(m): K.set_value(m.optimizer.lr, 3)\n", "m.optimizer.lr"),
        ("def f(m): m.optimizer.learning_rate.assign(3)\n", "m.optimizer.learning_rate"),
        ("lr = tf.keras.optimizers.schedules.ExponentialDecay(1, 2, 3)\n", "is a schedule"),
    ],
)
def test_decay_without_equivalent_schedule_is_unchanged(source: str, obstacle: str) -> None:
    rate = source[5:].strip() if source.startswith("lr = ") else "0.1"
    call = f"tf.keras.optimizers.SGD({rate}, decay=0.1)\n"
    migrated = migrate_python("import tensorflow as tf\n" + source + call)
    assert call in migrated.text
    (finding,) = migrated.findings
    assert (finding.name, finding.line) == ("decay", 3)
    assert obstacle in finding.problem
    assert "legacy.SGD" in finding.advice
    assert needs_old_tensorflow(finding)


def test_arguments_of_early_releases_are_unchanged() -> None:
    early = "c = {'max_steps': 2, 'batches_per_step': 3}\n"
    findings = migrate_python(f"import determined as det\n{early}").findings
    assert [finding.name for finding in findings] == ["max_steps", "batches_per_step"]
    assert migrate_python(early).findings == ()


@pytest.mark.parametrize(
    "source",
    [
        "import tensorflow as tf\ntf.keras.optimizers.Adam(1e-3)",
        "estimator = 1\nestimator.x",
        "class A:\n    estimator = 1\ntf = A()\ntf.estimator",
        "from sklearn import estimator",
        "from keras import layers\nlayers = [1]\nlayers.append(2)",
        "import keras\nkeras.__version__, keras.layers.Dense.mine, keras.src.x",
        "from .keras import utils\nutils.mine",
    ],
)
def test_similar_names_are_unchanged(source: str) -> None:
    assert migrate_python(source).findings == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (f"{SEARCH}max_steps: 20}}\n", f"{SEARCH}max_length: {{batches: 2000}}}}\n"),
        (
            f"batches_per_step: 50\n{SEARCH}max_steps: 20}}\n",
            f"scheduling_unit: 50\n{SEARCH}max_length: {{batches: 1000}}}}\n",
        ),
        (
            f"batches_per_step: 50\nmin_validation_period: 2\n{SEARCH}target_trial_steps: 20}}\n",
            f"scheduling_unit: 50\nmin_validation_period: {{batches: 100}}\n"
            f"{SEARCH}max_length: {{batches: 1000}}}}\n",
        ),
    ],
)
def test_settings_of_early_releases(old: str, new: str) -> None:
    migrated = migrate_config(old)
    assert migrated.text == new
    assert not [finding for finding in migrated.findings if finding.kind == "left"]


def test_command_prints_required_tensorflow(tmp_path: Path) -> None:
    (tmp_path / "model_def.py").write_text("import tensorflow as tf\ntf.estimator.Estimator(f)\n")
    result = CliRunner().invoke(main, ["migrate", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "1 place left to do by hand" in result.output
    assert 'needs TensorFlow 2.15: pip install "tensorflow==2.15.*"' in result.output
