"""Map each public name of Determined to its name in detcore; this module holds data only.

A target is ``"module"`` or ``"module:name"``. A target with an expression, such as
``"detcore.experimental:Determined().get_trial"``, cannot be imported: the expression replaces each
use of the old name. The documentation site shows the same tables, and a test resolves every target.
"""

from __future__ import annotations

ROOTS = ("determined", "determined_common", "determined_cli", "determined_deploy", "model_hub")
"""Top-level packages of Determined."""

REACHABLE = ("detcore", "detcore.core", "detcore.errors", "detcore.experimental")
"""Modules that ``import detcore`` is enough for."""

MODULES = {
    "determined": "detcore",
    "determined.core": "detcore.core",
    "determined.errors": "detcore.errors",
    "determined.estimator": "detcore_estimator",
    "determined.experimental": "detcore.experimental",
    "determined.experimental.client": "detcore.experimental",
    "determined.experimental.estimator": "detcore.experimental.estimator",
    "determined.experimental.keras": "detcore.experimental.keras",
    "determined.keras": "detcore_keras",
    "determined.keras.callbacks": "detcore_keras.callbacks",
    "determined.pytorch": "detcore_torch",
    "determined.tensorboard.metric_writers.pytorch": "detcore_torch",
}
"""Modules, and the module that now contains the names of each."""

STAND_FOR = {
    "determined._core": "determined.core",
    "determined.common.experimental": "determined.experimental",
    "determined_common.experimental": "determined.experimental",
}
"""Packages whose names were published elsewhere: names in the first are names in the second."""

_CLIENT = (
    "Checkpoint", "CheckpointOrderBy", "CheckpointSortBy", "Determined",
    "ExperimentReference", "Model", "ModelOrderBy", "ModelSortBy", "OrderBy",
    "TrainingMetrics", "TrialOrderBy", "TrialReference", "TrialSortBy", "ValidationMetrics",
)  # fmt: skip
SAME = {
    "determined": ("InvalidHP", "Trial", "TrialContext", "__version__"),
    "determined.core": (
        "CheckpointContext", "Context", "DistributedContext", "DownloadMode", "EarlyExitReason",
        "PreemptContext", "PreemptMode", "SearcherContext", "SearcherMode", "SearcherOperation",
        "TensorboardMode", "TrainContext", "Unit", "init",
    ),
    "determined.errors": (
        "CheckpointNotFound", "InvalidConfigurationException", "InvalidDataTypeException",
        "InvalidExperimentException", "InvalidModelException", "WorkerError",
    ),
    "determined.estimator": (
        "EstimatorContext", "EstimatorExperimentalContext", "EstimatorNativeContext",
        "EstimatorTrial", "EstimatorTrialContext", "MetricReducer", "RunHook", "init",
        "load_estimator_from_checkpoint_path",
    ),
    "determined.experimental": (*_CLIENT, "create", "create_trial_instance"),
    "determined.experimental.client": _CLIENT,
    "determined.experimental.estimator": ("init",),
    "determined.experimental.keras": ("init",),
    "determined.keras": (
        "SequenceAdapter", "TFKerasExperimentalContext", "TFKerasNativeContext",
        "TFKerasTensorBoard", "TFKerasTrial", "TFKerasTrialContext", "init",
        "load_model_from_checkpoint_path",
    ),
    "determined.keras.callbacks": (
        "Callback", "EarlyStopping", "ReduceLROnPlateau", "TFKerasTensorBoard", "TensorBoard",
    ),
    "determined.pytorch": (
        "Batch", "ClipGradsL2Norm", "ClipGradsL2Value", "DataLoader", "Epoch", "LRScheduler",
        "MetricReducer", "PyTorchCallback", "PyTorchTrial", "PyTorchTrialContext", "Record",
        "Reducer", "TrainUnit", "Trainer", "init", "load_trial_from_checkpoint_path",
        "reset_parameters",
    ),
    "determined.tensorboard.metric_writers.pytorch": ("TorchWriter",),
}  # fmt: skip
"""Names that the module's counterpart in `MODULES` has under the same name."""

_METHODS = (
    "create_model", "get_checkpoint", "get_experiment", "get_model", "get_model_labels",
    "get_models", "get_trial", "stream_trials_training_metrics",
    "stream_trials_validation_metrics",
)  # fmt: skip
"""Functions of the client that are methods of the same name."""

MOVED = {
    "determined.ClusterInfo": "detcore.core:ClusterInfo",
    "determined.DistributedContext": "detcore.core:DistributedContext",
    "determined.LOG_FORMAT": "logging:BASIC_FORMAT",
    "determined.TrialInfo": "detcore.core:TrialInfo",
    "determined.create": "detcore.experimental:create",
    "determined.errors.CheckpointStateException": "detcore.errors:CheckpointStateError",
    "determined.errors.InvalidCheckpointException": "detcore.errors:InvalidCheckpointError",
    "determined.estimator.ServingInputReceiverFn": "typing:Callable",
    "determined.experimental.client.Experiment": "detcore.experimental:ExperimentReference",
    "determined.experimental.client.ExperimentState": "detcore.types:ExperimentState",
    "determined.experimental.client.Trial": "detcore.experimental:TrialReference",
    "determined.experimental.client.TrialState": "detcore.types:TrialState",
    **{
        f"determined.experimental.client.{name}": f"detcore.experimental:Determined().{name}"
        for name in _METHODS
    },
    "determined.experimental.client.get_model_by_id": "detcore.experimental:Determined().get_model",
    "determined.experimental.client.list_models": "detcore.experimental:Determined().get_models",
    "determined.get_cluster_info": "detcore.core:get_cluster_info",
    "determined.keras.ArrayLike": "typing:Any",
    "determined.keras.InputData": "typing:Any",
    "determined.keras.KerasDataAdapter": "detcore_keras:SequenceAdapter",
    "determined.keras.KerasInputData": "typing:Any",
    "determined.keras.TFKerasContext": "detcore_keras:TFKerasTrialContext",
    "determined.keras.TensorBoard": "detcore_keras.callbacks:TensorBoard",
    "determined.pytorch.TorchData": "typing:Any",
}
"""Names that are elsewhere, or called otherwise."""

_MASTER = (
    "without arguments it reads the records of this machine; master= is the URL of a "
    "'detcore serve', and cert_path is called certificate"
)
_STATES = "its members are RUNNING, PAUSED, COMPLETED, CANCELED and ERROR; ACTIVE is RUNNING"
_CREATE = "it runs here with local=True; local=False, the default, needs a 'detcore serve'"

NOTES = {
    "determined.experimental.Determined": _MASTER,
    "determined.experimental.client.Determined": _MASTER,
    "determined.experimental.client.ExperimentState": _STATES,
    "determined.experimental.client.TrialState": _STATES,
    "determined.create": _CREATE,
    "determined.experimental.create": _CREATE,
    "determined.get_cluster_info": (
        "it has trial, latest_checkpoint, task_type and user_data, and is None outside of "
        "'detcore run'"
    ),
    "determined.keras.KerasDataAdapter": "its argument data is called sequence",
    "determined.pytorch.Trainer": (
        "'detcore run' takes the length from searcher.max_length; a script that runs alone takes "
        "it from fit"
    ),
    "determined.tensorboard.metric_writers.pytorch.TorchWriter": "pip install tensorboard",
}
"""Advice for names that were rewritten."""

_NO_CLUSTER = "detcore needs no cluster and no master"
_HPARAMS = (
    "write it as a dictionary, such as {'type': 'log', 'base': 10, 'minval': -4, 'maxval': 0}"
)
_ARRAYS = (
    "return the arrays (data, labels) themselves: detcore splits them into batches of "
    "context.get_per_slot_batch_size() records"
)
_WORKSPACE = "workspace and project are only fields of the experiment file"
_PLUGIN = "plugins define controllers; see docs/writing-a-plugin.md"
_INIT = "use detcore.experimental.keras.init, or detcore.experimental.estimator.init"
_LOCAL = "use the arguments local and test of detcore.experimental.create"
_NO_PLUGIN = "detcore has no plugin for it; use the Core API"
_LIGHTNING = (
    "train with Lightning's own Trainer, and call detcore_torch.for_lightning.fit; "
    "see docs/pytorch-scripts.md"
)
_RANKS = "context.distributed has ranks and sizes"
_SAMPLERS = "use detcore.data.IndexSampler, whose order can be resumed"
_SORT = "remove it, and sort the returned list"
_STREAM = (
    "use the stream_trials_training_metrics or stream_trials_validation_metrics of Determined()"
)
_SUBMODULE = "import its names from detcore.experimental"
_USERS = "a server has users: detcore user"

_GONE = {
    "": {
        "determined_cli": f"{_NO_CLUSTER}; see docs/command-line.md for the commands",
        "determined_common": "it was internal; detcore.experimental has the client",
        "determined_deploy": f"{_NO_CLUSTER}, so it needs no deployment",
        "model_hub": "detcore has no counterpart; write the trial class itself",
    },
    "determined": {
        "CallbackTrialController LoopTrialController TrialController": _PLUGIN,
        "Categorical Constant Double Integer Log": _HPARAMS,
        "ExperimentConfig": "use context.get_experiment_config() or detcore.config",
        "LegacyTrial": "subclass the trial class of a plugin, or detcore.Trial",
        "NativeContext": "detcore.experimental.keras.init creates the context of a script",
        "Mode": _LOCAL,
        "RankInfo RendezvousInfo ResourcesInfo": _RANKS,
        "cli": f"{_NO_CLUSTER}; see docs/command-line.md for the commands",
        "common": "it was internal; detcore.experimental has the client",
        "deploy": f"{_NO_CLUSTER}, so it needs no deployment",
        "exec": "'detcore run' starts the workers; delete the call",
        "gpu": "query the framework for its devices",
        "horovod": (
            "context.distributed has ranks; horovod itself is imported as usual, with "
            "detcore[horovod] installed"
        ),
        "import_from_path": (
            "use Checkpoint.load for the class of a checkpoint, or add the directory to sys.path"
        ),
        "launch": "resources.slots_per_trial sets the number of workers",
        "lightning": _LIGHTNING,
        "monkey_patch": "it was internal; delete the import",
        "profiler": "use the framework's own profiler",
        "ray": "detcore-ray is a launcher; see docs/distributed.md",
        "searcher": "detcore.search.SearchMethod has another contract; see docs/search.md",
        "tensorboard": "write to context.get_tensorboard_path() with the framework's own writer",
        "tensorpack": _NO_PLUGIN,
        "transformers": (
            "delete the callback, and call detcore_torch.for_transformers.train(trainer) instead "
            "of trainer.train(); see docs/pytorch-scripts.md"
        ),
        "util": "it was internal; write the few lines yourself",
    },
    "determined.core": {
        "DummyCheckpointContext DummyExperimentalCoreContext DummyPreemptContext "
        "DummyProfilerContext DummySearcherContext DummySearcherOperation DummyTrainContext": (
            "core.init() also works outside of a run"
        ),
        "DummyDistributedContext": "DistributedContext() stands for one worker",
        "ExperimentalCoreContext": "it was experimental; detcore has no counterpart",
        "ProfilerContext": "use the framework's own profiler",
        "SearcherContextMissing": "context.searcher always exists",
    },
    "determined.core.DistributedContext": {
        "from_tf_config": "use DistributedContext.from_env, which reads TF_CONFIG, too",
    },
    "determined.errors": {
        "MultipleDownloadsFailed NoDirectStorageAccess ProxiedDownloadFailed": (
            "catch detcore.errors.StorageError"
        ),
    },
    "determined.estimator": {
        "EstimatorTrialController": _PLUGIN,
    },
    "determined.experimental": {
        "Mode": _LOCAL,
        "checkpoint experiment metrics model trial": _SUBMODULE,
        "core_v2 unmanaged": (
            "detcore.core.init() records a script's run, with or without 'detcore run'"
        ),
        "init_native": _INIT,
        "pytorch_lightning": _LIGHTNING,
        "test_one_batch": "use 'detcore run --test', or create(..., test=True)",
    },
    "determined.experimental.client": {
        "CheckpointState": "compare with the string, such as 'COMPLETED'",
        "DownloadMode": ("files are read directly or through the server; remove the argument"),
        "ExperimentOrderBy ExperimentSortBy": "use 'detcore experiment list --json'",
        "ModelVersion": "a version is a Checkpoint with model_name and model_version",
        "Oauth2ScimClient ResourcePool add_oauth_client list_oauth_clients "
        "remove_oauth_client": _NO_CLUSTER,
        "Project Workspace create_workspace delete_workspace get_workspace list_workspaces": (
            _WORKSPACE
        ),
        "Session": "it was internal; use Determined(master=...)",
        "TrialMetrics": "use TrainingMetrics, or ValidationMetrics",
        "User create_user get_session_username get_user_by_id get_user_by_name list_users "
        "whoami": _USERS,
        "create_experiment": (
            "start it with 'detcore run CONFIG.yaml MODEL_DIR', or detcore.experimental.create"
        ),
        "iter_trials_metrics stream_trials_metrics": _STREAM,
        "list_experiments": "use Determined().get_experiments()",
        "login": "for a server: detcore user login URL; delete it",
        "logout": "for a server: detcore user logout URL; delete it",
    },
    "determined.experimental.client.CheckpointSortBy": {
        "STATE TRIAL_ID": _SORT,
    },
    "determined.experimental.client.ModelSortBy": {
        "NUM_VERSIONS WORKSPACE": _SORT,
    },
    "determined.experimental.client.TrialSortBy": {
        "BATCHES_PROCESSED BEST_VALIDATION_METRIC CHECKPOINT_SIZE DURATION "
        "LATEST_VALIDATION_METRIC LOG_RETENTION_DAYS": _SORT,
    },
    "determined.keras": {
        "DeterminedCallback": (
            "delete the callback, and call detcore_keras.fit(model, ...) instead of "
            "model.fit(...); see docs/keras.md"
        ),
        "InMemorySequence _ArrayLikeAdapter": _ARRAYS,
        "TFKerasTrainConfig": "use context.configure_fit",
        "TFKerasTrialController": _PLUGIN,
        "adapt_keras_data": "return the data itself; see docs/keras.md",
        "get_rng_state set_rng_state": "random states are saved and restored automatically",
    },
    "determined.pytorch": {
        "CheckpointLoadContext": "use detcore_torch.load_trial_from_checkpoint_path",
        "DistributedBatchSampler RepeatBatchSampler SkipBatchSampler adapt_batch_sampler "
        "samplers": _SAMPLERS,
        "PyTorchExperimentalContext": "context.experimental has its methods",
        "experimental": "detcore has no batch inference; load the trial, and loop over the data",
        "PyTorchTrialController": _PLUGIN,
        "data_length": "it was internal; write the few lines yourself",
        "deepspeed dsat": "detcore has no DeepSpeed plugin; use the Core API",
        "lightning": _LIGHTNING,
        "to_device": "use context.to_device",
    },
    "determined.pytorch.DataLoader": {
        "get_data_loader": "return the DataLoader itself: its batches are divided among workers",
    },
    "determined.pytorch.LRScheduler": {
        "load_state_dict state_dict": "the scheduler's state is saved and restored automatically",
    },
    "determined.pytorch.PyTorchTrial": {
        "build_model create_lr_scheduler optimizer": "wrap the objects in __init__",
        "get_batch_length": "detcore counts the records that the sampler selects",
    },
    "determined.pytorch.PyTorchTrialContext": {
        "reduce_metrics reset_reducers run_cross_slot_reduction": "detcore calls the reducers",
    },
    "determined.pytorch.TrainUnit": {
        "should_stop": "detcore decides when a validation or a checkpoint is due",
    },
}
"""Names that detcore does not have, by their modules, with advice."""

GONE = {
    f"{module}.{name}".lstrip("."): advice
    for module, advices in _GONE.items()
    for names, advice in advices.items()
    for name in names.split()
}
"""Names, and whole modules, that detcore does not have, with advice."""
