"""Snapshots of a trial, written during training or afterwards."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from estimator_fakes import Classifier, FakeClock, open_controller, train, variables_in
from estimator_models import Listener, Recorder
from test_exact_resume import Averaged, NormalizedBatches, PartialSaver, StreamingMetric
from test_exports import Serving, assert_predicts

from detcore.trial import SupportsSnapshot, SupportsTensors
from detcore_estimator.tensorflow_versions import tf, tf1

STEM = "model.ckpt"


class SnapshotClock(FakeClock):
    """Creates snapshots where `FakeClock` saves, and writes each one boundary later."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self._write: Callable[[], None] | None = None
        self._taken_at = 0
        self.pending: list[Path] = []
        super().__init__(*arguments, **settings)

    def boundary(self, *arguments: Any, **settings: Any) -> bool:
        goes_on = super().boundary(*arguments, **settings)
        if self._taken_at < self.steps_completed:
            self.write()
        return goes_on

    def save(self, folder: Path) -> None:
        self.write()  # at most one is outstanding
        folder.mkdir(parents=True)
        self._write, self._taken_at = self.controller.snapshot(folder), self.steps_completed
        if not list(folder.glob("model.ckpt*")):
            self.pending.append(folder)

    def write(self) -> None:
        if self._write is not None:
            in_thread(self._write)
        self._write = None


def in_thread(write: Callable[[], None]) -> None:
    """Call a function on another thread, and raise its exception."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(write).result(120)


def train_with_snapshots(
    trial_class: type[Classifier],
    tmp_path: Path,
    directory: Path,
    *,
    clock: type[FakeClock] = SnapshotClock,
    until: int = 13,
    **settings: Any,
) -> Any:
    """Train. Pending snapshots are written when the controller is closed."""
    np.random.seed(5)
    trained = train(
        trial_class, tmp_path, directory, clock=clock, until=until, unit=2, save_every=4, **settings
    )
    if isinstance(trained, SnapshotClock):
        trained.write()
    return trained


def files_in(folder: Path) -> dict[str, bytes]:
    """Return all files by name, with the content of files that are the same in every run.

    Graphs contain function names of the process. The iterator's state contains records that
    threads read ahead, and their number varies. If all of them were read ahead, the state is not
    saved. Other tests check that both resume exactly.
    """
    contents = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith("data-iterator."):
            continue
        content = path.read_bytes()
        if path.name.startswith(("graph.pbtxt", f"{STEM}-{folder.name}.meta")):
            content = b""
        elif path.name == "estimator-position.json":
            content = re.sub(rb'"iterator": (true|false)', b"", content)
        contents[path.name] = content
    return contents


def test_controller_capabilities(tmp_path: Path) -> None:
    with open_controller(Classifier, tmp_path) as controller:
        assert isinstance(controller, SupportsSnapshot)
        assert isinstance(controller, SupportsTensors)


CASES = [Classifier, Averaged, PartialSaver, NormalizedBatches, StreamingMetric]


@pytest.mark.parametrize("trial_class", CASES, ids=lambda case: case.__name__)
def test_snapshot_equals_save(tmp_path: Path, trial_class: type[Classifier]) -> None:
    plain = train_with_snapshots(trial_class, tmp_path, tmp_path / "saved", clock=FakeClock)
    copied = train_with_snapshots(trial_class, tmp_path, tmp_path / "copied")

    assert copied.batches == plain.batches
    assert [folder.name for folder in copied.pending] == ["4", "8", "12", "13"]
    for step in ("4", "8", "12", "13"):
        expected = files_in(tmp_path / "saved" / step)
        assert files_in(tmp_path / "copied" / step) == expected
        assert f"model.ckpt-{step}.index" in expected


def test_exported_models_match_the_checkpoint(tmp_path: Path) -> None:
    train_with_snapshots(Serving, tmp_path, tmp_path / "copied")

    for step in ("4", "13"):
        checkpoint = tmp_path / "copied" / step
        assert_predicts(checkpoint / "raw", variables_in(checkpoint))
        assert_predicts(checkpoint / "doubled", variables_in(checkpoint), 2)


def test_hooks_and_listeners_see_all_files(tmp_path: Path) -> None:
    hook = Recorder()
    for kind, value in (("hooks", hook), ("listeners", Listener())):
        folder = tmp_path / kind
        clock = train_with_snapshots(
            type("Hooked", (Serving,), {kind: (value,)}), tmp_path, folder, until=4
        )
        assert clock.pending == []
        assert (folder / "4" / "raw").is_dir()
    assert hook.calls.count("hook.on_checkpoint_end") == 1


def test_other_hooks_do_not_block_training(tmp_path: Path) -> None:
    class Hooked(Classifier):
        hooks = (tf1.train.SessionRunHook(),)

    clock = train_with_snapshots(Hooked, tmp_path, tmp_path / "copied", until=4)
    assert [folder.name for folder in clock.pending] == ["4"]


def test_tensors_name_their_files(tmp_path: Path) -> None:
    with open_controller(StreamingMetric, tmp_path) as controller:
        write = controller.snapshot(tmp_path)
        infos = {(info.name, info.file): info for info in controller.tensors()}
    in_thread(write)

    names = set()
    for index in tmp_path.glob("*.ckpt*.index"):
        reader = tf.train.load_checkpoint(str(index.with_suffix("")))
        types = reader.get_variable_to_dtype_map()
        for name, shape in reader.get_variable_to_shape_map().items():
            key = name, f"{index.stem}.data-00000-of-00001"
            assert (tmp_path / key[1]).is_file()
            assert infos[key].dtype == tf.as_dtype(types[name]).name
            assert json.loads(json.dumps(infos[key].shape)) == shape
            names.add(key)
    assert names == set(infos)
    assert len({file for _, file in names}) == 2


def test_failed_write_raises(tmp_path: Path) -> None:
    missing, good = tmp_path / "gone", tmp_path / "good"
    missing.mkdir()
    good.mkdir()
    with open_controller(Classifier, tmp_path) as controller:
        write = controller.snapshot(missing)
        shutil.rmtree(missing)
        missing.write_text("a file in its place")
        with pytest.raises(tf.errors.OpError):
            in_thread(write)
        in_thread(controller.snapshot(good))
    assert "global_step" in variables_in(good)


def test_first_and_dropped_snapshots(tmp_path: Path) -> None:
    dropped, committed = tmp_path / "given-up", tmp_path / "written"
    dropped.mkdir()
    committed.mkdir()
    with open_controller(Classifier, tmp_path) as controller:
        controller.snapshot(dropped)
        write = controller.snapshot(committed)
    in_thread(write)
    assert variables_in(committed)["global_step"] == 0
    assert not list(dropped.glob("*.ckpt*"))


def test_snapshot_path_with_pattern_characters(tmp_path: Path) -> None:
    folder = tmp_path / "run [1] *" / "4"
    train_with_snapshots(Serving, tmp_path, folder.parent, until=4)
    names = {path.name for path in folder.glob("model.ckpt-4.*")}
    assert names == {f"model.ckpt-4.{end}" for end in ("data-00000-of-00001", "index", "meta")}
    assert len(list((folder / "raw").iterdir())) == 1
    prefix = f"{folder.rename(tmp_path / 'moved')}/model.ckpt-4"
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.import_meta_graph(f"{prefix}.meta").restore(session, prefix)
        assert session.run(tf1.train.get_global_step()) == 4
