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
from detcore.core.channel import Channel
from detcore.core.cluster_info import ClusterInfo, get_cluster_info
from detcore.core.context_opening import read_trial_info
from detcore.core.context_options import (
    EarlyExitReason,
    PreemptMode,
    ScriptExperiment,
    SearcherMode,
    TensorboardMode,
    script_file,
)
from detcore.core.core_context import Context, init
from detcore.core.preempt_context import PreemptContext
from detcore.core.searcher_context import SearcherContext, SearcherOperation
from detcore.core.train_context import TrainContext
from detcore.core.trial_outcome import describe_cause
from detcore.distributed import DistributedContext

__all__ = [
    "Channel",
    "CheckpointContext",
    "ClusterInfo",
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
    "get_cluster_info",
    "init",
    "read_trial_info",
    "script_file",
]
