"""What the context of a trial is made from where no runner started it; for the other scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def make_setup(folder: Path, global_batch_size: int, distributed: Any = None) -> Any:
    """Return a `TrialSetup`.

    Args:
        folder: Where all files of the trial go.
        global_batch_size: Records of a batch, all workers together.
        distributed: The trial's workers; default: this process alone.
    """
    from detcore.distributed import DistributedContext
    from detcore.trial import TrialSetup
    from detcore.types import TrialInfo

    hparams = {"global_batch_size": global_batch_size}
    info = TrialInfo(
        experiment_id=1,
        trial_id=1,
        run_id=1,
        trial_seed=1,
        hparams=hparams,
        config={},
        model_dir=str(folder),
        trial_dir=str(folder),
        database_url="",
    )
    alone = {"rank": 0, "size": 1, "local_rank": 0, "local_size": 1, "cross_rank": 0}
    return TrialSetup(
        config={},
        hparams=hparams,
        seed=1,
        distributed=distributed or DistributedContext(**alone, cross_size=1),
        info=info,
        tensorboard_path=folder / "tensorboard",
        cache_dir=folder,
    )
