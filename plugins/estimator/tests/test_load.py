"""Load serving functions from checkpoints of this plugin and of Determined 0.17."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from _determined import (
    LARGE,
    PICKLES,
    call_signature,
    truncate_file,
    write_determined,
    write_saved_model,
)
from estimator_models import run_python
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from detcore.errors import CheckpointNotFoundError, InvalidCheckpointError, UnsafePathError
from detcore_estimator.load_checkpoint import load_estimator_from_checkpoint_path
from detcore_estimator.tensorflow_versions import tf


def write_ours(folder: Path, *names: str, framework: str = "estimator") -> Path:
    """Write the files of this plugin's checkpoints that the loader reads."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {"framework": framework, "trial_class": "model_def:T", "config": {}, "hparams": {}}
    (folder / "trial.json").write_text(json.dumps(record))
    (folder / "metadata.json").write_text(json.dumps({"steps_completed": 3, "format": "mine"}))
    for number, name in enumerate(names, 1):
        write_saved_model(folder / name / "1700000000", weight=number)
    return folder


def test_single_serving_function_is_loaded(tmp_path: Path) -> None:
    folder = write_ours(tmp_path / "c", "serving")
    assert call_signature(load_estimator_from_checkpoint_path(folder)) == [2.0, 1.0]
    assert call_signature(load_estimator_from_checkpoint_path(str(folder), ["serve"])) == [2.0, 1.0]
    assert call_signature(load_estimator_from_checkpoint_path(folder, name="serving")) == [2.0, 1.0]


def test_name_selects_a_serving_function(tmp_path: Path) -> None:
    folder = write_ours(tmp_path, "a", "b", "deep/c")
    assert call_signature(load_estimator_from_checkpoint_path(folder, name="b")) == [3.0, 1.0]
    assert call_signature(load_estimator_from_checkpoint_path(folder, name="deep/c")) == [4.0, 1.0]
    with pytest.raises(InvalidCheckpointError, match=r"3 serving functions: 'a', 'b', 'deep/c'"):
        load_estimator_from_checkpoint_path(folder)
    with pytest.raises(InvalidCheckpointError, match=r"'x'; it has: 'a', 'b', 'deep/c'"):
        load_estimator_from_checkpoint_path(folder, name="x")


def test_checkpoint_without_serving_function(tmp_path: Path) -> None:
    folder = write_ours(tmp_path)
    # These are not serving functions of the trial.
    write_saved_model(folder / "export" / "best" / "1700000000", weight=7)
    write_saved_model(folder / "code" / "pretrained" / "1", weight=8)
    write_saved_model(folder / "serving" / "temp-1700000001", weight=9)
    with pytest.raises(InvalidCheckpointError, match=r"(?s)no serving function.*def build_"):
        load_estimator_from_checkpoint_path(folder)
    write_saved_model(folder / "export" / "1700000000", weight=1)
    assert call_signature(load_estimator_from_checkpoint_path(folder, name="export")) == [2.0, 1.0]


def test_newest_export_is_loaded(tmp_path: Path) -> None:
    folder = write_ours(tmp_path, "s")
    for seconds, weight in (("999", 5), ("1700000100", 6)):
        write_saved_model(folder / "s" / seconds, weight=weight)
    assert call_signature(load_estimator_from_checkpoint_path(folder)) == [7.0, 1.0]


def test_text_export_is_loaded(tmp_path: Path) -> None:
    folder = write_ours(tmp_path)
    write_saved_model(folder / "s" / "17", weight=4, as_text=True)
    assert (folder / "s" / "17" / "saved_model.pbtxt").exists()
    assert call_signature(load_estimator_from_checkpoint_path(folder)) == [5.0, 1.0]


def test_directory_with_pattern_characters(tmp_path: Path) -> None:
    folder = write_ours(tmp_path / "run [1] *", "serving")
    assert call_signature(load_estimator_from_checkpoint_path(folder)) == [2.0, 1.0]


@pytest.mark.parametrize("framework", ["keras", None])
def test_other_frameworks_are_rejected(tmp_path: Path, framework: Any) -> None:
    folder = write_ours(tmp_path, "s", framework=framework)
    with pytest.raises(InvalidCheckpointError, match="not of 'estimator'"):
        load_estimator_from_checkpoint_path(folder)


def test_wrong_paths(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="does not exist"):
        load_estimator_from_checkpoint_path(tmp_path / "nowhere")
    (tmp_path / "trial.json").write_text("{")
    with pytest.raises(InvalidCheckpointError, match=r"trial\.json is damaged"):
        load_estimator_from_checkpoint_path(tmp_path)


def test_tags(tmp_path: Path) -> None:
    folder = write_ours(tmp_path)
    write_saved_model(folder / "s" / "1", tags=["serve", "gpu"])
    assert call_signature(load_estimator_from_checkpoint_path(folder, ["gpu", "serve"])) == [
        2.0,
        1.0,
    ]
    with pytest.raises(InvalidCheckpointError, match=r"tags \['serve'\]; .*\['gpu', 'serve'\]"):
        load_estimator_from_checkpoint_path(folder)


@pytest.mark.parametrize(
    "fault",
    [
        lambda export: truncate_file(export / "saved_model.pb", 20),
        lambda export: truncate_file(export / "variables" / "variables.data-00000-of-00001", 2),
        lambda export: shutil.rmtree(export / "variables"),
        lambda export: (export / "assets" / "words.txt").unlink(),
    ],
    ids=["truncated graph", "truncated variables", "missing variables", "missing asset"],
)
def test_damaged_exports_are_rejected(tmp_path: Path, fault: Any) -> None:
    folder = write_ours(tmp_path, "s")
    fault(folder / "s" / "1700000000")
    with pytest.raises(InvalidCheckpointError, match="download the checkpoint again"):
        load_estimator_from_checkpoint_path(folder)


@pytest.mark.parametrize(
    "name", ["s", "s/1700000000", "s/1700000000/variables", "s/1700000000/saved_model.pb"]
)
def test_links_outside_the_directory_are_rejected(tmp_path: Path, name: str) -> None:
    folder = write_ours(tmp_path / "c", "s")
    outside = tmp_path / "outside"
    shutil.move(folder / name, outside)
    (folder / name).symlink_to(outside)
    with pytest.raises(UnsafePathError, match="outside of the checkpoint"):
        load_estimator_from_checkpoint_path(folder)


@pytest.mark.parametrize("name", ["../words.txt", "/etc/hostname"])
def test_assets_outside_are_rejected(tmp_path: Path, name: str) -> None:
    folder = write_ours(tmp_path)
    export = folder / "s" / "1"
    write_saved_model(export)
    saved_model = saved_model_pb2.SavedModel.FromString((export / "saved_model.pb").read_bytes())
    packed = saved_model.meta_graphs[0].collection_def["saved_model_assets"].any_list.value[0]
    asset = meta_graph_pb2.AssetFileDef()
    packed.Unpack(asset)
    asset.filename = name
    packed.Pack(asset)
    (export / "saved_model.pb").write_bytes(saved_model.SerializeToString())
    with pytest.raises(UnsafePathError, match="asset"):
        load_estimator_from_checkpoint_path(folder)


# -- Determined ----------------------------------------------------------------------------------


@pytest.mark.parametrize("described", ["load_data.json", "metadata.json", None])
def test_determined_checkpoints(tmp_path: Path, described: str | None) -> None:
    folder = write_determined(tmp_path / "c", described=described)
    loaded = load_estimator_from_checkpoint_path(folder)
    assert call_signature(loaded) == [LARGE + 1.0, 1.0]
    assert not (tmp_path / "pickle-was-loaded").exists()


def test_trap_detects_unpickling(tmp_path: Path) -> None:
    """Loading one of the pickles writes a file, so the tests above can fail."""
    folder = write_determined(tmp_path / "c")
    for name in PICKLES:
        run_python("-c", f"import pickle; pickle.load(open({str(folder / name)!r}, 'rb'))")
        (tmp_path / "pickle-was-loaded").unlink()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("load_data.json", {"trial_type": "TFKerasTrial"}),
        ("metadata.json", {"format": "h5", "framework": "tensorflow-2.4"}),
    ],
)
def test_determined_checkpoint_of_other_trials(
    tmp_path: Path, name: str, content: dict[str, str]
) -> None:
    folder = write_determined(tmp_path / "c", described=None)
    (folder / name).write_text(json.dumps(content))
    with pytest.raises(InvalidCheckpointError, match="not of an EstimatorTrial"):
        load_estimator_from_checkpoint_path(folder)


def test_determined_checkpoint_with_two_functions(tmp_path: Path) -> None:
    folder = write_determined(tmp_path / "c")
    write_saved_model(folder / "other" / "1600000000", weight=5)
    with pytest.raises(InvalidCheckpointError, match="'other', 'serving'"):
        load_estimator_from_checkpoint_path(folder)
    assert call_signature(load_estimator_from_checkpoint_path(folder, name="other")) == [6.0, 1.0]


def test_two_checkpoints_are_independent(tmp_path: Path) -> None:
    """Both hold a reference variable of the same name."""
    first = load_estimator_from_checkpoint_path(write_determined(tmp_path / "a", weight=10.0))
    second = load_estimator_from_checkpoint_path(write_determined(tmp_path / "b", weight=20.0))
    assert [call_signature(first), call_signature(second), call_signature(first)] == [
        [11.0, 1.0],
        [21.0, 1.0],
        [11.0, 1.0],
    ]


V1_SCRIPT = """
import sys
from detcore_estimator.tensorflow_versions import tf, tf1
tf1.disable_v2_behavior()
from detcore_estimator.load_checkpoint import load_estimator_from_checkpoint_path
loaded = load_estimator_from_checkpoint_path(sys.argv[1])
out = loaded.signatures["serving_default"](x=tf.constant([[1.0]]), word=tf.constant(["b"]))
with tf1.Session() as session:
    session.run([tf1.global_variables_initializer(), tf1.tables_initializer(),
                 tf1.get_collection("saved_model_initializers")])
    values = session.run(out)
assert (float(values["y"][0, 0]), float(values["id"][0])) == (float(sys.argv[2]) + 1.0, 1.0), values
"""


def test_v2_behavior_disabled(tmp_path: Path) -> None:
    folder = write_determined(tmp_path / "c")
    run_python("-c", V1_SCRIPT, folder, LARGE)
    assert tf.executing_eagerly()  # the process of the other tests
