"""The `PyTorchTrial` of a model definition, which logs its records and may kill itself."""

import atexit
import json
import os
import sys
from pathlib import Path
from typing import Any

import model_def

sys.path.append(os.environ["TEST_SUPPORT"])

from _killed_scripts import Kill

from detcore.data import IdKind, LedgerWriter
from detcore_torch.data.data_loader import BatchStream

BASE: Any = getattr(model_def, os.environ["TEST_TRIAL"])


class KilledTrial(BASE):
    def __init__(self, context: Any) -> None:
        super().__init__(context)
        run, place = context.info.run_id, context.distributed
        if run <= int(os.environ["TEST_KILLS"]):
            seed = f"{os.environ['TEST_SEED']}-{run - 1}"
            Kill.drawn(seed, ranks=place.size).prepare(place.rank)
        else:
            atexit.register(write_modules)
        log_records(run, context.info.steps_completed, place)

    def build_training_data_loader(self) -> Any:
        loader = super().build_training_data_loader()
        workers = int(os.environ["TEST_WORKERS"])
        if hasattr(loader, "options"):
            loader.options["num_workers"] = workers
        else:
            loader.num_workers = workers
            loader.prefetch_factor = 2 if workers else None
        return loader


def write_modules() -> None:
    """Write the names of this process's imported modules."""
    modules = Path(os.environ["TEST_FOLDER"]) / "modules.json"
    modules.write_text(json.dumps([*sys.modules]))


def log_records(run: int, step: int, place: Any) -> None:
    """Log the records of each batch of this worker, also with several workers."""
    path = Path(os.environ["TEST_FOLDER"]) / f"ledger-{run}-{place.rank}.bin"
    ledger = LedgerWriter(path, run_id=run, start_step=step, rank=place.rank, world_size=place.size)
    number, take = step, BatchStream.take_batch

    def logged(stream: Any) -> Any:
        nonlocal number
        if number == step:
            ledger.describe(IdKind.RECORD_INDEX, num_records=len(stream._loader.dataset))
        batch = take(stream)
        epoch = (number * place.size + place.rank) // stream._order.batches_per_epoch
        number += 1
        ledger.log(number, epoch, batch.records)
        ledger.flush()
        return batch

    BatchStream.take_batch = logged
