"""Names that the newest TensorFlow does not have, and settings of early releases."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from detcore.cli import main
from detcore_determined.migrate import (
    migrate_config,
    migrate_file,
    migrate_python,
)
from detcore_determined.migrate._python import needs_old_tensorflow

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
def test_what_is_gone_is_named_with_the_tensorflow_that_has_it(source: str, name: str) -> None:
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
    ],
)
def test_imports_of_the_private_keras_are_rewritten(old: str, new: str) -> None:
    migrated = migrate_python(old)
    assert (migrated.text, migrated.findings) == (new, ())


def test_keywords_of_the_optimizers() -> None:
    old = (
        "from tensorflow.keras import optimizers as o\no.SGD(lr=1), o.Adam(\n 1, decay=2), f(lr=3)"
    )
    migrated = migrate_python(old)
    assert migrated.text == old.replace("SGD(lr", "SGD(learning_rate")
    (finding,) = migrated.findings
    assert (finding.line, finding.name) == (3, "decay")


def test_what_early_releases_took_is_left() -> None:
    early = "c = {'max_steps': 2, 'batches_per_step': 3}\n"
    trial = "class T({}PyTorchTrial):\n    def build_model(self): ...\n    def f(self): ...\n"
    source = f"import determined as det\n{early}{trial.format('det.pytorch.')}"
    names = [finding.name for finding in migrate_python(source).findings]
    assert names == ["max_steps", "batches_per_step", "build_model"]
    assert migrate_python(early + trial.format("")).findings == ()


@pytest.mark.parametrize(
    "source",
    [
        "from tensorflow.python.keras.engine import data_adapter",
        "import tensorflow.python.keras.layers",
        "import tensorflow.python.keras as keras",
        "from tensorflow.python import keras",
    ],
)
def test_what_only_the_private_keras_has_is_left(source: str) -> None:
    migrated = migrate_python(source)
    assert migrated.text == source
    (finding,) = migrated.findings
    assert "private to TensorFlow" in finding.problem


@pytest.mark.parametrize(
    "source",
    [
        "import tensorflow as tf\ntf.keras.optimizers.Adam(1e-3)",
        "estimator = 1\nestimator.x",
        "class A:\n    estimator = 1\ntf = A()\ntf.estimator",
        "from sklearn import estimator",
    ],
)
def test_what_looks_alike(source: str) -> None:
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
        (
            f"{SEARCH}max_length: {{batches: 1}}}}\ncheckpoint_storage: {{host_path: /x}}\n",
            f"{SEARCH}max_length: {{batches: 1}}}}\n"
            "checkpoint_storage: {type: shared_fs, host_path: /x}\n",
        ),
        (
            f"{SEARCH}max_length: {{batches: 1}}}}\ncheckpoint_storage:\n  container_path: /x\n",
            f"{SEARCH}max_length: {{batches: 1}}}}\n"
            "checkpoint_storage:\n  type: directory\n  container_path: /x\n",
        ),
    ],
)
def test_settings_of_early_releases(old: str, new: str) -> None:
    migrated = migrate_config(old)
    assert migrated.text == new
    assert not [finding for finding in migrated.findings if finding.kind == "left"]


def test_the_old_name_of_the_accuracy() -> None:
    old = SEARCH.replace("loss", "val_acc") + "max_length: {batches: 1}}\n"
    (note,) = migrate_config(old).findings
    assert (note.kind, note.name) == ("note", "val_acc")
    assert "val_accuracy" in note.problem


@pytest.mark.parametrize(
    ("metrics", "is_renamed"),
    [("['accuracy']", True), ("[tf.keras.metrics.AUC(), 'accuracy']", True), ("['acc']", False)],
)
def test_the_code_tells_the_name_of_the_accuracy(
    metrics: str, is_renamed: bool, tmp_path: Path
) -> None:
    (tmp_path / "model_def.py").write_text(f"model.compile(loss='mse', metrics={metrics})\n")
    (tmp_path / "broken.py").write_text("def\n")
    file = tmp_path / "const.yaml"
    file.write_text(SEARCH.replace("loss", "val_acc") + "max_length: {batches: 1}}\n")
    report = migrate_file(file)
    assert ("val_accuracy" in file.read_text()) is is_renamed
    assert report.num_changes == int(is_renamed)
    assert [finding.name for finding in report.findings] == ([] if is_renamed else ["val_acc"])


def test_the_command_says_which_tensorflow_the_code_needs(tmp_path: Path) -> None:
    (tmp_path / "model_def.py").write_text("import tensorflow as tf\ntf.estimator.Estimator(f)\n")
    result = CliRunner().invoke(main, ["migrate", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "1 place left to do by hand" in result.output
    assert 'needs TensorFlow 2.15: pip install "tensorflow==2.15.*"' in result.output
