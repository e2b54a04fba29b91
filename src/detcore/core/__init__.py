"""The Core API: metrics, checkpoints, search and preemption for training code of any kind.

```python
from detcore import core

with core.init(max_length={"batches": 1000}, resume=True) as context:
    steps = context.info.steps_completed
    if context.info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
            weights = (path / "weights.bin").read_bytes()
    for operation in context.searcher.operations():
        ...
        context.train.report_training_metrics(steps, {"loss": 0.5})
        if context.preempt.should_preempt():
            with context.checkpoint.store_path({"steps_completed": steps}) as (path, uuid):
                (path / "weights.bin").write_bytes(weights)
            raise SystemExit(75)
```
"""

from detcore.checkpoint import CheckpointContext, DownloadMode
from detcore.contract.values import TrialInfo, Unit
from detcore.core._channel import Channel
from detcore.core._context import Context, init
from detcore.core._modes import (
    EarlyExitReason,
    PreemptMode,
    ScriptExperiment,
    SearcherMode,
    TensorboardMode,
    script_file,
)
from detcore.core._opening import read_trial_info
from detcore.core._outcome import describe_cause
from detcore.core._preempt import PreemptContext
from detcore.core._searcher import SearcherContext, SearcherOperation
from detcore.core._train import TrainContext
from detcore.distributed import DistributedContext

__all__ = [
    "Channel",
    "CheckpointContext",
    "Context",
    "DistributedContext",
    "DownloadMode",
    "EarlyExitReason",
    "PreemptContext",
    "PreemptMode",
    "ScriptExperiment",
    "SearcherContext",
    "SearcherMode",
    "SearcherOperation",
    "TensorboardMode",
    "TrainContext",
    "TrialInfo",
    "Unit",
    "describe_cause",
    "init",
    "read_trial_info",
    "script_file",
]
