"""Checkpoints that several workers save and restore together: real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from launch_command import run_ranks

HEAD = """
import json, os, sys
from pathlib import Path
from detcore import core
from detcore.log import events
from detcore.checkpoint import CheckpointContext, DownloadMode
from detcore.errors import CheckpointError, DetcoreError
from detcore.storage import LocalStorage
from detcore_storage import FsspecStorage

root = Path(sys.argv[1])
workers = core.DistributedContext.from_env()
rank = workers.rank

class Shared(FsspecStorage):
    "A storage whose files count as being elsewhere."
    downloads = 0
    def get_tree(self, pairs, **options):
        type(self).downloads += 1
        return super().get_tree(pairs, **options)

remote = Shared((root / "remote").as_uri())
local = LocalStorage(root / "local")
folder = root / f"part-{rank}"
folder.mkdir()
told = {}
saved = []

class Records:
    def record_checkpoint(self, change, **_):
        if isinstance(change, events.CheckpointCommitted):
            saved.append(change.uuid)

def context(storage):
    return CheckpointContext(storage=storage, distributed=workers, database=Records())

def refused(call):
    try:
        call()
    except DetcoreError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"

def content(path):
    names = sorted(p for p in path.rglob("*") if p.is_file() and p.name != "manifest.json")
    return {p.relative_to(path).as_posix(): p.read_text() for p in names}
"""
TAIL = """
print(json.dumps(told))
workers.close()
"""


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Return a function that runs a script on N workers and returns the results of each."""

    return lambda body, workers=3: run_ranks(tmp_path, HEAD + body + TAIL, workers)[0]


@pytest.mark.parametrize("storage", ["local", "remote"])
def test_every_worker_saves_its_part(run: Any, storage: str) -> None:
    results = run(
        f"""
desk = context({storage})
desk.versions["plugin"] = "1"
(folder / f"{{rank}}.txt").write_text(f"of {{rank}}")
(folder / "same").write_text("same everywhere")
(folder / "empty").mkdir()
mine = None if rank == 2 else folder
metadata = {{"steps_completed": 3}} if rank == 0 else {{"more": {{str(rank): rank}}}}
uploaded = desk.upload(mine, metadata, shard=True)
metadata = {{"steps_completed": 4, "rank": {{str(rank): rank}}}}
with desk.store_path(metadata, shard=True) as (path, stored):
    (path / "deep").mkdir()
    (path / "deep" / f"{{rank}}.txt").write_text(f"of {{rank}}")
    (path / "same").write_text("same everywhere")
    if rank == 1:
        (path / "link").symlink_to("deep/1.txt")
with desk.restore_path(uploaded) as path:
    first = content(path)
with desk.restore_path(stored) as path:
    second = content(path)
manifest = desk.get_manifest(stored)
told = [uploaded, stored, first, second, manifest.metadata, dict(manifest.versions), saved]
"""
    )
    assert results[0][:6] == results[1][:6] == results[2][:6]
    uploaded, stored, first, second, metadata, versions, _ = results[0]
    assert json.loads(first.pop("metadata.json")) == {
        "steps_completed": 3, "more": {"1": 1, "2": 2}
    }  # fmt: skip
    assert first == {"0.txt": "of 0", "1.txt": "of 1", "same": "same everywhere"}
    second.pop("metadata.json")
    assert second == {
        "deep/0.txt": "of 0", "deep/1.txt": "of 1", "deep/2.txt": "of 2",
        "link": "of 1", "same": "same everywhere",
    }  # fmt: skip
    assert metadata == {"steps_completed": 4, "rank": {"0": 0, "1": 1, "2": 2}}
    assert versions["plugin"] == "1"
    assert [result[6] for result in results] == [[uploaded, stored], [], []]


@pytest.mark.parametrize("storage", ["local", "remote"])
def test_conflict_fails_on_all_workers(run: Any, storage: str) -> None:
    results = run(
        f"""
desk = context({storage})
(folder / "name").write_text(f"of {{rank}}")
meta = {{"steps_completed": 3}}
told["content"] = refused(lambda: desk.upload(folder, meta, shard=True))
told["metadata"] = refused(
    lambda: desk.upload(folder, {{"steps_completed": 3, "deep": {{"x": rank}}}}, shard=True,
                        selector=lambda name: False))
told["no files"] = refused(lambda: desk.upload(None, meta, shard=True))
told["steps"] = refused(lambda: desk.upload(folder, {{}}, shard=True))
told["gone"] = refused(
    lambda: desk.upload(folder if rank else root / "gone", meta, shard=True))

def write(fails):
    with desk.store_path(meta, shard=True) as (path, _):
        (path / "name").write_text(f"of {{rank}}")
        if fails and rank == 1:
            raise CheckpointError("a mistake on one worker")

told["stored"] = refused(lambda: write(fails=False))
told["block"] = refused(lambda: write(fails=True))
workers.barrier()
told["left"] = [entry.key for entry in {storage}.list()]
"""
    )
    for rank, result in enumerate(results):
        assert "name is not the same on rank 0 and rank 1" in result["content"], result
        assert "CheckpointConflictError" in result["content"]
        assert "the metadata 'deep/x' is 1 on rank 1" in result["metadata"]
        assert "ckpt_dir=None on all workers" in result["no files"]
        assert "steps_completed" in result["steps"]
        assert "gone does not exist" in result["gone"]
        assert ("on worker 0: " in result["gone"]) == (rank != 0)
        assert "name is not the same" in result["stored"]
        assert "a mistake on one worker" in result["block"]
        assert result["left"] == []


def test_workers_of_a_node_share_one_download(run: Any) -> None:
    results = run(
        """
desk = context(remote)
for name in ("a", "b", "c"):
    (folder / name).write_text(name)
uuid = workers.broadcast(desk.upload(folder, {"steps_completed": 1}) if rank == 0 else None)
before = remote.downloads
with desk.restore_path(uuid) as path:
    told["all"] = sorted(content(path))
told["restores"] = remote.downloads - before
wanted = "ab"[rank : rank + 1]
with desk.restore_path(uuid, selector=wanted.__contains__) as path:
    told["union"] = sorted(content(path))
    told["same"] = len(set(workers.allgather(str(path)))) == 1
workers.barrier()  # rank 0 comes here once it has removed it
told["removed"] = not path.exists()
desk.download(uuid, root / "together", selector=wanted.__contains__)
told["together"] = sorted(content(root / "together"))
before = remote.downloads
desk.download(uuid, root / f"own-{rank}")
told["own"] = (sorted(content(root / f"own-{rank}")), remote.downloads - before)
desk.download(uuid, root / f"alone-{rank}", DownloadMode.NoSharedDownload)
told["alone"] = sorted(content(root / f"alone-{rank}"))
workers.barrier()
if rank == 0:
    (root / "remote" / uuid / "b").write_text("B")
workers.barrier()
told["damaged"] = refused(lambda: desk.restore_path(uuid).__enter__())
""",
        workers=2,
    )
    names = ["a", "b", "c", "metadata.json"]
    assert [result["restores"] for result in results] == [1, 0]
    for result in results:
        assert result["all"] == result["alone"] == names
        assert result["own"] == [names, 1]
        assert result["union"] == result["together"] == ["a", "b"]
        assert result["same"]
        assert result["removed"]
        assert "CheckpointCorruptError" in result["damaged"]
        assert "b: has changed" in result["damaged"]
