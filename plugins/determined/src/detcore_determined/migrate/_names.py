"""Map each public name of Determined to its name in detcore; this module holds data only.

A target is ``"module"`` or ``"module:name"``. A target with an expression, such as
``"detcore.experimental:Determined().get_trial"``, cannot be imported: the expression replaces each
use of the old name. docs/migrating.md contains the same tables; a test compares them and resolves
every target.
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
}
"""Modules, and the module that now contains the names of each."""

STAND_FOR = {
    "determined._core": "determined.core",
    "determined.common.experimental": "determined.experimental",
    "determined_common.experimental": "determined.experimental",
}
"""Packages whose names were published elsewhere: names in the first are names in the second."""

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
    "determined.experimental": (
        "Checkpoint", "CheckpointOrderBy", "CheckpointSortBy", "Determined",
        "ExperimentReference", "Model", "ModelOrderBy", "ModelSortBy", "OrderBy",
        "TrainingMetrics", "TrialOrderBy", "TrialReference", "TrialSortBy", "ValidationMetrics",
        "create", "create_trial_instance",
    ),
    "determined.experimental.client": (
        "Checkpoint", "CheckpointOrderBy", "CheckpointSortBy", "Determined",
        "ExperimentReference", "Model", "ModelOrderBy", "ModelSortBy", "OrderBy",
        "TrainingMetrics", "TrialOrderBy", "TrialReference", "TrialSortBy", "ValidationMetrics",
    ),
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
        "DataLoader", "LRScheduler", "MetricReducer", "PyTorchCallback", "PyTorchTrial",
        "PyTorchTrialContext", "Reducer", "load_trial_from_checkpoint_path",
    ),
}  # fmt: skip
"""Names that the module's counterpart in `MODULES` has under the same name."""

MOVED = {
    "determined.DistributedContext": "detcore.core:DistributedContext",
    "determined.LOG_FORMAT": "logging:BASIC_FORMAT",
    "determined.create": "detcore.experimental:create",
    "determined.errors.CheckpointStateException": "detcore.errors:CheckpointStateError",
    "determined.errors.InvalidCheckpointException": "detcore.errors:InvalidCheckpointError",
    "determined.estimator.ServingInputReceiverFn": "typing:Callable",
    "determined.experimental.client.Experiment": "detcore.experimental:ExperimentReference",
    "determined.experimental.client.ExperimentState": "detcore.types:ExperimentState",
    "determined.experimental.client.Trial": "detcore.experimental:TrialReference",
    "determined.experimental.client.TrialState": "detcore.types:TrialState",
    "determined.experimental.client.create_model": "detcore.experimental:Determined().create_model",
    "determined.experimental.client.get_checkpoint": (
        "detcore.experimental:Determined().get_checkpoint"
    ),
    "determined.experimental.client.get_experiment": (
        "detcore.experimental:Determined().get_experiment"
    ),
    "determined.experimental.client.get_model": "detcore.experimental:Determined().get_model",
    "determined.experimental.client.get_model_by_id": "detcore.experimental:Determined().get_model",
    "determined.experimental.client.get_model_labels": (
        "detcore.experimental:Determined().get_model_labels"
    ),
    "determined.experimental.client.get_models": "detcore.experimental:Determined().get_models",
    "determined.experimental.client.get_trial": "detcore.experimental:Determined().get_trial",
    "determined.experimental.client.list_models": "detcore.experimental:Determined().get_models",
    "determined.experimental.client.stream_trials_training_metrics": (
        "detcore.experimental:Determined().stream_trials_training_metrics"
    ),
    "determined.experimental.client.stream_trials_validation_metrics": (
        "detcore.experimental:Determined().stream_trials_validation_metrics"
    ),
    "determined.keras.ArrayLike": "typing:Any",
    "determined.keras.DeterminedCallback": "detcore_keras:DetcoreCallback",
    "determined.keras.InputData": "typing:Any",
    "determined.keras.KerasDataAdapter": "detcore_keras:SequenceAdapter",
    "determined.keras.KerasInputData": "typing:Any",
    "determined.keras.TFKerasContext": "detcore_keras:TFKerasTrialContext",
    "determined.keras.TensorBoard": "detcore_keras.callbacks:TensorBoard",
    "determined.pytorch.TorchData": "typing:Any",
}
"""Names that are elsewhere, or called otherwise."""

_CREATE = "it runs here with local=True; local=False, the default, needs a 'detcore serve'"

NOTES = {
    "determined.experimental.Determined": (
        "without arguments it reads the records of this machine; master= is the URL of a "
        "'detcore serve', and cert_path is called certificate"
    ),
    "determined.experimental.client.Determined": (
        "without arguments it reads the records of this machine; master= is the URL of a "
        "'detcore serve', and cert_path is called certificate"
    ),
    "determined.experimental.client.ExperimentState": (
        "its members are RUNNING, PAUSED, COMPLETED, CANCELED and ERROR; ACTIVE is RUNNING"
    ),
    "determined.experimental.client.TrialState": (
        "its members are RUNNING, PAUSED, COMPLETED, CANCELED and ERROR; ACTIVE is RUNNING"
    ),
    "determined.create": _CREATE,
    "determined.experimental.create": _CREATE,
    "determined.keras.DeterminedCallback": (
        "its arguments are others: DetcoreCallback(context); see docs/keras.md"
    ),
    "determined.keras.KerasDataAdapter": "its argument data is called sequence",
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
_LENGTHS = "lengths are given in the experiment file, such as {batches: 100}"
_WORKSPACE = "workspace and project are only fields of the experiment file"
_PLUGIN = "a plugin brings it; see docs/plugins.md"
_INIT = "use detcore.experimental.keras.init, or detcore.experimental.estimator.init"
_INTERNAL = "it was internal"
_LOCAL = "use the arguments local and test of detcore.experimental.create"
_NO_PLUGIN = "there is no plugin for it; use the Core API"
_LIGHTNING = (
    "train with Lightning's own Trainer, and call detcore_torch.for_lightning.fit; "
    "see docs/pytorch-scripts.md"
)
_RANKS = "context.distributed has ranks and sizes"
_SAMPLERS = "detcore.data.IndexSampler is an order that can be resumed"
_SORT = "leave it out, and sort the list that comes"
_STREAM = (
    "use the stream_trials_training_metrics or stream_trials_validation_metrics of Determined()"
)
_SUBMODULE = "import its names from detcore.experimental"
_USERS = "users are those of a server: detcore user"

GONE = {
    "determined.CallbackTrialController": _PLUGIN,
    "determined.Categorical": _HPARAMS,
    "determined.ClusterInfo": f"{_NO_CLUSTER}; of a trial, context.info tells what there is",
    "determined.Constant": _HPARAMS,
    "determined.Double": _HPARAMS,
    "determined.EnvContext": _INTERNAL,
    "determined.ExperimentConfig": "use context.get_experiment_config() or detcore.config",
    "determined.Integer": _HPARAMS,
    "determined.LegacyTrial": "subclass the trial class of a plugin, or detcore.Trial",
    "determined.Log": _HPARAMS,
    "determined.LoopTrialController": _PLUGIN,
    "determined.NativeContext": "detcore.experimental.keras.init makes the context of a script",
    "determined.Mode": _LOCAL,
    "determined.RankInfo": _RANKS,
    "determined.RendezvousInfo": _RANKS,
    "determined.ResourcesInfo": _RANKS,
    "determined.TrialController": _PLUGIN,
    "determined.TrialInfo": "detcore.core.TrialInfo is flat: context.info.hparams, .trial_id, ...",
    "determined.cli": f"{_NO_CLUSTER}; see docs/command-line.md for the commands",
    "determined.common": "it was internal; detcore.experimental has the client",
    "determined.constants": _INTERNAL,
    "determined.core.DistributedContext.from_tf_config": (
        "use DistributedContext.from_env, which reads TF_CONFIG, too"
    ),
    "determined.core.DummyCheckpointContext": "core.init() works outside of a run, too",
    "determined.core.DummyDistributedContext": "DistributedContext() stands for one worker",
    "determined.core.DummyExperimentalCoreContext": "core.init() works outside of a run, too",
    "determined.core.DummyPreemptContext": "core.init() works outside of a run, too",
    "determined.core.DummyProfilerContext": "core.init() works outside of a run, too",
    "determined.core.DummySearcherContext": "core.init() works outside of a run, too",
    "determined.core.DummySearcherOperation": "core.init() works outside of a run, too",
    "determined.core.DummyTrainContext": "core.init() works outside of a run, too",
    "determined.core.ExperimentalCoreContext": "it was experimental; nothing took its place",
    "determined.core.ProfilerContext": "use the framework's own profiler",
    "determined.core.SearcherContextMissing": "context.searcher is always there",
    "determined.deploy": f"{_NO_CLUSTER}, so that there is nothing to deploy",
    "determined.errors.EnterpriseOnlyError": _INTERNAL,
    "determined.errors.InternalException": _INTERNAL,
    "determined.errors.MultipleDownloadsFailed": "catch detcore.errors.StorageError",
    "determined.errors.NoDirectStorageAccess": "catch detcore.errors.StorageError",
    "determined.errors.ProxiedDownloadFailed": "catch detcore.errors.StorageError",
    "determined.errors.SkipWorkloadException": _INTERNAL,
    "determined.errors.StopLoadingImplementation": _INTERNAL,
    "determined.errors.WorkerFinishedGracefully": _INTERNAL,
    "determined.estimator.EstimatorTrialController": _PLUGIN,
    "determined.exec": "'detcore run' starts the workers; nothing is to be called for it",
    "determined.experimental.Mode": _LOCAL,
    "determined.experimental.checkpoint": _SUBMODULE,
    "determined.experimental.client.CheckpointSortBy.STATE": _SORT,
    "determined.experimental.client.CheckpointSortBy.TRIAL_ID": _SORT,
    "determined.experimental.client.CheckpointState": "compare with the text, such as 'COMPLETED'",
    "determined.experimental.client.DownloadMode": (
        "files come from where they are, or through the server; leave the argument out"
    ),
    "determined.experimental.client.ExperimentOrderBy": "use 'detcore experiment list --json'",
    "determined.experimental.client.ExperimentSortBy": "use 'detcore experiment list --json'",
    "determined.experimental.client.ModelSortBy.NUM_VERSIONS": _SORT,
    "determined.experimental.client.ModelSortBy.WORKSPACE": _SORT,
    "determined.experimental.client.ModelVersion": (
        "a version is a Checkpoint with model_name and model_version"
    ),
    "determined.experimental.client.Oauth2ScimClient": _NO_CLUSTER,
    "determined.experimental.client.Project": _WORKSPACE,
    "determined.experimental.client.ResourcePool": _NO_CLUSTER,
    "determined.experimental.client.Session": "it was internal; Determined(master=...) logs in",
    "determined.experimental.client.TrialMetrics": "use TrainingMetrics, or ValidationMetrics",
    "determined.experimental.client.TrialSortBy.BATCHES_PROCESSED": _SORT,
    "determined.experimental.client.TrialSortBy.BEST_VALIDATION_METRIC": _SORT,
    "determined.experimental.client.TrialSortBy.CHECKPOINT_SIZE": _SORT,
    "determined.experimental.client.TrialSortBy.DURATION": _SORT,
    "determined.experimental.client.TrialSortBy.LATEST_VALIDATION_METRIC": _SORT,
    "determined.experimental.client.TrialSortBy.LOG_RETENTION_DAYS": _SORT,
    "determined.experimental.client.User": _USERS,
    "determined.experimental.client.Workspace": _WORKSPACE,
    "determined.experimental.client.add_oauth_client": _NO_CLUSTER,
    "determined.experimental.client.create_experiment": (
        "start it with 'detcore run CONFIG.yaml MODEL_DIR', or detcore.experimental.create"
    ),
    "determined.experimental.client.create_user": _USERS,
    "determined.experimental.client.create_workspace": _WORKSPACE,
    "determined.experimental.client.delete_workspace": _WORKSPACE,
    "determined.experimental.client.get_session_username": _USERS,
    "determined.experimental.client.get_user_by_id": _USERS,
    "determined.experimental.client.get_user_by_name": _USERS,
    "determined.experimental.client.get_workspace": _WORKSPACE,
    "determined.experimental.client.iter_trials_metrics": _STREAM,
    "determined.experimental.client.list_experiments": "use Determined().get_experiments()",
    "determined.experimental.client.list_oauth_clients": _NO_CLUSTER,
    "determined.experimental.client.list_users": _USERS,
    "determined.experimental.client.list_workspaces": _WORKSPACE,
    "determined.experimental.client.login": "for a server: detcore user login URL; delete it",
    "determined.experimental.client.logout": "for a server: detcore user logout URL; delete it",
    "determined.experimental.client.remove_oauth_client": _NO_CLUSTER,
    "determined.experimental.client.stream_trials_metrics": _STREAM,
    "determined.experimental.client.whoami": _USERS,
    "determined.experimental.core_v2": (
        "detcore.core.init() records a script's run by itself, with or without 'detcore run'"
    ),
    "determined.experimental.experiment": _SUBMODULE,
    "determined.experimental.init_native": _INIT,
    "determined.experimental.metrics": _SUBMODULE,
    "determined.experimental.model": _SUBMODULE,
    "determined.experimental.pytorch_lightning": _LIGHTNING,
    "determined.experimental.test_one_batch": "use 'detcore run --test', or create(..., test=True)",
    "determined.experimental.trial": _SUBMODULE,
    "determined.experimental.unmanaged": (
        "detcore.core.init() records a script's run by itself, with or without 'detcore run'"
    ),
    "determined.get_cluster_info": (
        f"{_NO_CLUSTER}; inside 'with core.init() as context', context.info has hparams, trial_id, "
        "trial_seed, latest_checkpoint"
    ),
    "determined.gpu": "ask the framework which devices there are",
    "determined.horovod": (
        "context.distributed has ranks; horovod itself is imported as usual, with "
        "detcore[horovod] installed"
    ),
    "determined.import_from_path": (
        "Checkpoint.load finds the class of a checkpoint; else put the folder into sys.path"
    ),
    "determined.ipc": _INTERNAL,
    "determined.keras.InMemorySequence": _ARRAYS,
    "determined.keras._ArrayLikeAdapter": _ARRAYS,
    "determined.keras.TFKerasTrainConfig": "use context.configure_fit",
    "determined.keras.TFKerasTrialController": _PLUGIN,
    "determined.keras.adapt_keras_data": "return the data itself; see docs/keras.md",
    "determined.keras.get_rng_state": "random states are saved and restored by themselves",
    "determined.keras.set_rng_state": "random states are saved and restored by themselves",
    "determined.launch": "resources.slots_per_trial says how many workers there are",
    "determined.layers": _INTERNAL,
    "determined.lightning": _LIGHTNING,
    "determined.load": _INTERNAL,
    "determined.monkey_patch": "it was internal; delete the import",
    "determined.profiler": "use the framework's own profiler",
    "determined.pytorch.Batch": _LENGTHS,
    "determined.pytorch.CheckpointLoadContext": "use detcore_torch.load_trial_from_checkpoint_path",
    "determined.pytorch.ClipGradsL2Norm": "pass clip_grads to context.step_optimizer",
    "determined.pytorch.ClipGradsL2Value": "pass clip_grads to context.step_optimizer",
    "determined.pytorch.DistributedBatchSampler": _SAMPLERS,
    "determined.pytorch.Epoch": _LENGTHS,
    "determined.pytorch.PyTorchExperimentalContext": "it was experimental; nothing took its place",
    "determined.pytorch.PyTorchTrialController": _PLUGIN,
    "determined.pytorch.RepeatBatchSampler": _SAMPLERS,
    "determined.pytorch.SkipBatchSampler": _SAMPLERS,
    "determined.pytorch.TrainUnit": _LENGTHS,
    "determined.pytorch.Trainer": "a trial class is run by 'detcore run', or by create",
    "determined.pytorch.adapt_batch_sampler": _SAMPLERS,
    "determined.pytorch.data_length": "it was internal; write the few lines yourself",
    "determined.pytorch.deepspeed": "there is no DeepSpeed plugin; use the Core API",
    "determined.pytorch.dsat": "there is no DeepSpeed plugin; use the Core API",
    "determined.pytorch.experimental": "it was experimental; nothing took its place",
    "determined.pytorch.init": "a trial class is run by 'detcore run', or by create",
    "determined.pytorch.lightning": _LIGHTNING,
    "determined.pytorch.reset_parameters": "write the few lines yourself",
    "determined.pytorch.samplers": _SAMPLERS,
    "determined.pytorch.to_device": "use context.to_device",
    "determined.ray": "detcore-ray is a launcher; see docs/ray.md",
    "determined.searcher": "detcore.search.SearchMethod has another contract; see docs/search.md",
    "determined.tensorboard": (
        "write to context.get_tensorboard_path() with the framework's own writer"
    ),
    "determined.tensorpack": _NO_PLUGIN,
    "determined.transformers": (
        "delete the callback, and call detcore_torch.for_transformers.train(trainer) instead of "
        "trainer.train(); see docs/pytorch-scripts.md"
    ),
    "determined.util": "it was internal; write the few lines yourself",
    "determined.workload": _INTERNAL,
    "determined_cli": f"{_NO_CLUSTER}; see docs/command-line.md for the commands",
    "determined_common": "it was internal; detcore.experimental has the client",
    "determined_deploy": f"{_NO_CLUSTER}, so that there is nothing to deploy",
    "model_hub": "there is no counterpart; write the trial class itself",
}
"""Names, and whole modules, that detcore does not have, with advice."""
