"""Test `Checkpoint`: its attributes, files, metadata and loading."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from client_store import FILES, ClientStore
from fake_distributions import write_distribution
from toy_command import TOY_PLUGIN

from detcore.client import Checkpoint, Determined
from detcore.errors import (
    CheckpointCorruptError,
    CheckpointNotFoundError,
    CheckpointStateError,
    InvalidArgumentError,
    InvalidCheckpointError,
    NotFoundError,
    PluginNotFoundError,
    UnsafePathError,
)
from detcore.log.events import CheckpointDamaged


def test_checkpoint_attributes(client: Determined, store: ClientStore) -> None:
    uuid = store.one_checkpoint(note="n")
    checkpoint = client.get_checkpoint(uuid[:8])
    assert checkpoint.uuid == uuid
    assert (checkpoint.experiment_id, checkpoint.trial_id) == (1, 1)
    assert checkpoint.experiment_config["searcher"]["metric"] == "loss"
    assert checkpoint.hparams == {"rate": 0.1}
    assert checkpoint.batch_number == checkpoint.steps_completed == 10
    assert checkpoint.start_time <= str(checkpoint.end_time) == str(checkpoint.report_time)
    assert set(FILES) <= set(checkpoint.resources)
    assert checkpoint.resources["weights.txt"] == 5
    assert checkpoint.validation["metrics"] == {
        "validation_metrics": {"loss": 1},
        "num_inputs": 10,
    }
    assert checkpoint.training.validation_metrics == {"loss": 1}
    assert checkpoint.metadata == {"steps_completed": 10, "framework": "toy", "note": "n"}
    assert (checkpoint.framework, checkpoint.state) == ("toy", "COMPLETED")
    assert (checkpoint.model_name, checkpoint.model_version) == (None, None)
    without = client.get_checkpoint(store.checkpoint(1, 20))
    assert without.validation == {}
    assert without.training.validation_metrics == {}


def test_checkpoint_accepts_documented_arguments() -> None:
    checkpoint = Checkpoint("u", {}, 1, 2, {"a": 1}, 10, "start", "end", {}, {}, "0.13", "torch-1")
    assert checkpoint.determined_version == "0.13"
    assert checkpoint.training.hparams == {"a": 1}
    assert checkpoint.metadata == {}


@pytest.mark.parametrize("uuid", ["nothing", ""])
def test_one_that_is_not_there(client: Determined, store: ClientStore, uuid: str) -> None:
    store.one_checkpoint()
    with pytest.raises((NotFoundError, InvalidArgumentError), match=r"no checkpoint|uuid is ''"):
        client.get_checkpoint(uuid)


# -- downloading -----------------------------------------------------------------------------------


def content(folder: str | Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file() and path.name not in ("manifest.json", "metadata.json")
    }


def test_download_to_default_directory(client: Determined, store: ClientStore) -> None:
    uuid = store.one_checkpoint()
    folder = client.get_checkpoint(uuid).download()
    assert folder == f"checkpoints/{uuid}"
    assert content(folder) == FILES
    assert json.loads(Path(folder, "metadata.json").read_text())["steps_completed"] == 10


def test_complete_download_is_not_repeated(
    client: Determined, store: ClientStore, tmp_path: Path
) -> None:
    uuid = store.one_checkpoint()
    checkpoint = client.get_checkpoint(uuid)
    folder = checkpoint.download(tmp_path / "deep" / "model")
    assert folder == str(tmp_path / "deep" / "model")
    (Path(folder) / "metadata.json").write_text('{"mine": true}')
    (Path(folder) / "beside.txt").write_text("mine")
    shutil.rmtree(store.files(uuid))  # nothing can be downloaded
    assert checkpoint.download(folder) == folder
    assert json.loads((Path(folder) / "metadata.json").read_text()) == {"mine": True}
    assert content(folder) == FILES | {"beside.txt": "mine"}


def test_concurrent_downloads_to_one_directory(store: ClientStore) -> None:
    uuid = store.checkpoint(
        store.trial(store.experiment()), 10, files={f"{index}.txt": "x" for index in range(50)}
    )
    barrier = threading.Barrier(4)

    def download() -> str:
        with Determined() as client:
            checkpoint = client.get_checkpoint(uuid)
            barrier.wait(timeout=60)
            return checkpoint.download("model")

    with ThreadPoolExecutor(4) as pool:
        folders = [job.result() for job in [pool.submit(download) for _ in range(4)]]
    assert folders == ["model"] * 4
    assert len(content("model")) == 50
    assert not list(Path().glob("model.tmp*")) + list(Path("model").glob("*.tmp*"))


def test_missing_metadata_file_is_written(client: Determined, store: ClientStore) -> None:
    checkpoint = client.get_checkpoint(store.one_checkpoint())
    checkpoint.remove_files(["metadata.json"])
    assert checkpoint.state == "PARTIALLY_DELETED"
    checkpoint.add_metadata({"late": 1})
    folder = checkpoint.download()
    file_metadata = json.loads(Path(folder, "metadata.json").read_text())
    assert file_metadata == {"steps_completed": 10, "framework": "toy", "late": 1}


def test_unreadable_checkpoint_is_not_downloaded(client: Determined, store: ClientStore) -> None:
    deleted = client.get_checkpoint(store.one_checkpoint())
    deleted.delete()
    with pytest.raises(CheckpointStateError, match="was deleted"):
        deleted.download()
    uuid = store.checkpoint(1, 20)
    (store.files(uuid) / "weights.txt").write_text("1 2 4")
    with pytest.raises(CheckpointCorruptError, match=r"weights\.txt"):
        client.get_checkpoint(uuid).download("model")
    assert not Path("model").exists()
    store.database.record_checkpoint(CheckpointDamaged(uuid=uuid))
    with pytest.raises(CheckpointStateError, match="is damaged"):
        client.get_checkpoint(uuid).download("model")


# -- deleting --------------------------------------------------------------------------------------


def test_delete(client: Determined, store: ClientStore) -> None:
    uuid = store.one_checkpoint()
    checkpoint = client.get_checkpoint(uuid)
    checkpoint.delete()
    assert (checkpoint.state, checkpoint.resources) == ("DELETED", {})
    assert not store.files(uuid).exists()
    checkpoint.delete()
    assert client.get_checkpoint(uuid).state == "DELETED"
    with pytest.raises(CheckpointStateError, match="was deleted"):
        checkpoint.remove_files(["*"])


def test_some_files_are_deleted(client: Determined, store: ClientStore) -> None:
    uuid = store.one_checkpoint()
    checkpoint = client.get_checkpoint(uuid)
    checkpoint.remove_files(["code"])
    assert checkpoint.state == "PARTIALLY_DELETED"
    assert set(checkpoint.resources) == {"weights.txt", "metadata.json"}
    assert content(checkpoint.download()) == {"weights.txt": "1 2 3"}
    with pytest.raises(UnsafePathError):
        checkpoint.remove_files(["../*"])
    with pytest.raises(InvalidArgumentError, match="globs is 'code'"):
        checkpoint.remove_files("code")


# -- metadata --------------------------------------------------------------------------------------


def test_metadata_is_merged_and_removed(client: Determined, store: ClientStore) -> None:
    uuid = store.one_checkpoint(a={"x": 1}, b=2)
    checkpoint, other = client.get_checkpoint(uuid), client.get_checkpoint(uuid)
    other.add_metadata({"theirs": 1})
    checkpoint.add_metadata({"a": {"y": 2}, "tags": ("t",)})
    expected = {"steps_completed": 10, "framework": "toy", "a": {"y": 2}, "b": 2}
    expected |= {"theirs": 1, "tags": ["t"]}
    assert checkpoint.metadata == client.get_checkpoint(uuid).metadata == expected
    checkpoint.remove_metadata(["a", "b", "never"])
    del expected["a"], expected["b"]
    assert checkpoint.metadata == client.get_checkpoint(uuid).metadata == expected
    checkpoint.write_metadata_file("out.json")
    assert json.loads(Path("out.json").read_text()) == expected
    assert [path.name for path in Path().glob("*out*")] == ["out.json"]


@pytest.mark.parametrize("wrong", [["a"], {1: 2}, {"a": object()}, {"a": float("nan")}, None])
def test_invalid_metadata_is_rejected(client: Determined, store: ClientStore, wrong: Any) -> None:
    checkpoint = client.get_checkpoint(store.one_checkpoint())
    before = dict(checkpoint.metadata)
    with pytest.raises(ValueError, match="metadata"):
        checkpoint.add_metadata(wrong)
    with pytest.raises(ValueError, match="keys is 'a'"):
        checkpoint.remove_metadata("a")
    assert checkpoint.metadata == before


def test_object_changes_only_after_store(client: Determined, store: ClientStore) -> None:
    number = store.experiment()
    checkpoint = client.get_checkpoint(store.checkpoint(store.trial(number), 10))
    before = dict(checkpoint.metadata)
    client.get_experiment(number).delete()
    with pytest.raises(NotFoundError):
        checkpoint.add_metadata({"a": 1})
    with pytest.raises(NotFoundError):
        checkpoint.remove_metadata(["framework"])
    with pytest.raises(NotFoundError):
        checkpoint.delete()
    assert (checkpoint.metadata, checkpoint.state) == (before, "COMPLETED")


# -- loading ---------------------------------------------------------------------------------------


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOY_PLUGIN))
    monkeypatch.setenv("DETCORE_PLUGINS", "core,toy")


WEIGHTS = {"toy.json": '{"weights": [1.0, 2.0]}'}


@pytest.mark.usefixtures("toy")
def test_checkpoint_is_loaded_by_its_plugin(client: Determined, store: ClientStore) -> None:
    trial = store.trial(store.experiment())
    checkpoint = client.get_checkpoint(store.checkpoint(trial, 10, files=WEIGHTS))
    assert checkpoint.load() == {"weights": [1.0, 2.0], "tags": ["all"]}
    assert checkpoint.load("model", tags=["serve"], scale=2.0) == {
        "weights": [2.0, 4.0],
        "tags": ["serve"],
    }
    shutil.rmtree(store.files(checkpoint.uuid))
    assert checkpoint.load("model")["weights"] == [1.0, 2.0]  # loading works
    with pytest.raises(InvalidArgumentError, match="'toy' cannot be loaded with map_location"):
        checkpoint.load("model", map_location="cpu")


def folder_of(tmp_path: Path, **files: Any) -> Path:
    """Write a checkpoint folder. Keys are names of JSON files without suffix."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "toy.json").write_text(WEIGHTS["toy.json"])
    for name, value in files.items():
        (folder / f"{name}.json").write_text(value if isinstance(value, str) else json.dumps(value))
    return folder


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    "files",
    [
        {"trial": {"framework": "toy"}, "metadata": {"framework": "tensorflow-2.4.1"}},
        {"manifest": {"metadata": {"framework": "toy"}}},
        {"metadata": {"framework": "toy", "format": "h5"}},
        {"metadata": {"framework": "oldtoy"}},
        {"manifest": {"metadata": {}}, "metadata": {"framework": "toy"}},
    ],
)
def test_framework_is_read_from_files(tmp_path: Path, files: dict[str, Any]) -> None:
    loaded = Checkpoint.load_from_path(folder_of(tmp_path, **files))
    assert loaded["weights"] == [1.0, 2.0]


LEGACY = """
from detcore import hookimpl
from detcore.types import Framework

def make(name, reads):
    return Framework(name=name, trial_class="m:T", context_class="m:C", controller="m:K",
                     load_checkpoint=f"detcore_old.plugin:{name}", reads=reads)

def graphs(path, tags=None): return "graphs", tags
def layers(path): return "layers"
def tensors(path, map_location=None): return "tensors", map_location

@hookimpl
def detcore_register_framework():
    return [make("graphs", ("tensorflow", "tensorflow:saved_model")),
            make("layers", ("tensorflow:h5", "tensorflow:saved_weights")),
            make("tensors", ("torch",))]
"""


@pytest.mark.parametrize(
    ("metadata", "arguments", "loaded"),
    [
        ({"framework": "tensorflow-2.4.1"}, {"tags": ["serve"]}, ("graphs", ["serve"])),
        ({"framework": "tensorflow-1.14", "format": "saved_model"}, {}, ("graphs", None)),
        ({"framework": "tensorflow-2.4.1", "format": "h5"}, {}, "layers"),
        ({"framework": "tensorflow-2.4.1", "format": "saved_weights"}, {}, "layers"),
        ({"tensorflow_version": "1.14"}, {}, ("graphs", None)),
        ({"framework": "torch-1.7.1"}, {"map_location": "cpu"}, ("tensors", "cpu")),
        ({"torch_version": "1.4"}, {}, ("tensors", None)),
    ],
)
def test_checkpoints_of_the_earlier_system(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    metadata: dict[str, Any],
    arguments: dict[str, Any],
    loaded: object,
) -> None:
    site = tmp_path / "site"
    write_distribution(site, "detcore-old", modules={"detcore_old.plugin": LEGACY})
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("DETCORE_PLUGINS", "old")
    for name in [name for name in sys.modules if name.startswith("detcore_old")]:
        monkeypatch.delitem(sys.modules, name)
    folder = folder_of(tmp_path, metadata=metadata)
    assert Checkpoint.load_from_path(str(folder), **arguments) == loaded


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "unknown framework of the checkpoint"),
        ({"metadata": {"framework": None}}, "unknown framework of the checkpoint"),
        ({"trial": "[1]"}, r"trial\.json is damaged: it does not contain a JSON object"),
        ({"metadata": '{"framework": '}, r"metadata\.json is damaged"),
    ],
)
def test_directory_without_framework_is_rejected(
    tmp_path: Path, files: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidCheckpointError, match=said):
        Checkpoint.load_from_path(folder_of(tmp_path, **files))


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"framework": "keras"}, "pip install detcore-keras"),
        ({"framework": "estimator"}, "pip install detcore-estimator"),
        ({"framework": "tensorflow-2.4.1", "format": "h5"}, "pip install detcore-keras"),
        ({"framework": "tensorflow-2.4.1"}, "pip install detcore-estimator"),
        ({"framework": "torch-1.7"}, "pip install detcore-torch"),
    ],
)
def test_missing_plugin_is_reported(tmp_path: Path, metadata: dict[str, Any], said: str) -> None:
    with pytest.raises(PluginNotFoundError, match=said):
        Checkpoint.load_from_path(folder_of(tmp_path, metadata=metadata))


def test_missing_directory_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match=r"the directory .* does not exist"):
        Checkpoint.load_from_path(tmp_path / "nothing")
