"""A Core API loop that alternates between two data sources, and may be killed at any step."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from detcore import core
from detcore.data import DataSource, IdKind, LedgerWriter
from detcore_torch import resumable

sys.path.append(str(Path(__file__).parents[1]))

from _data import Drawing, Words

NUM_RECORDS = 50
CHECKPOINT_EVERY = 5
NAMES = ("indexed", "stream")


def make_sources(num_workers: int) -> dict[str, DataSource[Any]]:
    indexed = torch.utils.data.DataLoader(
        Drawing(NUM_RECORDS),
        batch_size=8,
        shuffle=True,
        num_workers=num_workers,
        persistent_workers=bool(num_workers),
    )
    stream = torch.utils.data.DataLoader(Words(NUM_RECORDS), batch_size=8, num_workers=num_workers)
    return {
        "indexed": resumable(indexed, seed=3),
        "stream": resumable(stream, seed=3, record_id=lambda record: int(record[0])),
    }


class Endless:
    """The batches of all epochs of a source, logged as they are used."""

    def __init__(self, source: DataSource[Any], ledger: LedgerWriter | None) -> None:
        self.source = source
        self.ledger = ledger
        self.batches = self._generate()

    def _generate(self) -> Iterator[Any]:
        while True:
            yield from self.source

    def take(self, step: int) -> bytes:
        batch = next(self.batches)
        if self.ledger is not None:
            self.ledger.log(step, self.source.epoch, self.source.records())
            self.ledger.flush()
        return bytes(batch.numpy().tobytes())


def whole_digests(num_workers: int, num_steps: int) -> list[str]:
    """Return the digest of each source's batches in an uninterrupted run."""
    feeds = [Endless(source, None) for source in make_sources(num_workers).values()]
    digests = ["", ""]
    for step in range(1, num_steps + 1):
        digests = advanced(digests, feeds, step)
    return digests


def advanced(digests: list[str], feeds: list[Endless], step: int) -> list[str]:
    """Add a batch of each source to its digest."""
    return [
        hashlib.sha256(digest.encode() + feed.take(step)).hexdigest()
        for digest, feed in zip(digests, feeds, strict=True)
    ]


def main(num_workers: int, num_steps: int, killed_at: int) -> None:
    with core.init(
        checkpoint_storage=str(Path.cwd() / "saved"),
        script=core.ScriptExperiment(),
        max_length={"batches": num_steps},
        resume=True,
    ) as context:
        sources = make_sources(num_workers)
        step, digests = context.info.steps_completed, ["", ""]
        if context.info.latest_checkpoint is not None:
            with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
                document = json.loads((path / "state.json").read_text())
            digests = document["digests"]
            for name, source in sources.items():
                source.seek(document[name])
        feeds = []
        for name, source in sources.items():
            ledger = LedgerWriter(
                Path(name) / f"ledger-{context.info.run_id}.bin",
                run_id=context.info.run_id,
                start_step=step,
            )
            ledger.describe(IdKind.RECORD_INDEX, num_records=NUM_RECORDS)
            feeds.append(Endless(source, ledger))
        for operation in context.searcher.operations():
            while step < operation.length:
                step += 1
                digests = advanced(digests, feeds, step)
                if step == killed_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                if step % CHECKPOINT_EVERY == 0:
                    with context.checkpoint.store_path({"steps_completed": step}) as (path, _):
                        state = {name: source.position() for name, source in sources.items()}
                        (path / "state.json").write_text(json.dumps({"digests": digests, **state}))
            operation.report_completed(0.0)
        Path("digests.json").write_text(json.dumps(digests))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
