"""Export models for serving functions into checkpoints, and with the user's exporters."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore_estimator.checkpoint.tensorflow_files import restore_variables
from detcore_estimator.engine.estimator import Estimator
from detcore_estimator.engine.event_files import EventFile, result_summary
from detcore_estimator.exporters.serving_graph import ServingGraph
from detcore_estimator.graph.variable_transfer import check_variables
from detcore_estimator.tensorflow_versions import tf_estimator

if TYPE_CHECKING:
    from detcore_estimator.training.training_graph import TrainingSession


_logger = logging.getLogger("detcore.estimator")


class ServingExports:
    """Writes a SavedModel for each serving function, whose graph is built once.

    Args:
        model_fn: Called as ``(features, labels, mode, config)``.
        functions: Serving input receiver functions by name.
        config: The run configuration.
    """

    def __init__(
        self, model_fn: Callable[..., Any], functions: Mapping[str, Callable[..., Any]], config: Any
    ) -> None:
        self._graphs = {
            name: ServingGraph(model_fn, function, config=config)
            for name, function in functions.items()
        }

    def check(self, training: TrainingSession) -> None:
        """Compare the models with the training graph.

        Raises:
            InvalidModelError: If a model has variables that are not trained.
        """
        for graph in self._graphs.values():
            if not (training.has_own_saver or graph.has_own_saver):
                check_variables(training.session.graph, graph.graph)

    def write(self, directory: Path, prefix: Path) -> None:
        """Write ``<directory>/<name>/<unix seconds>/saved_model.pb`` for each function.

        Args:
            directory: Directory to write into.
            prefix: Prefix of the files with the trained variables.

        Raises:
            InvalidCheckpointError: If the files do not have the variables of the model.
        """
        for name, graph in self._graphs.items():
            graph.write(
                str(directory / name),
                lambda session, saver: restore_variables(saver, session, prefix),
            )


class Exporters:
    """Runs the exporters of an ``EvalSpec`` after each validation.

    They receive an estimator with a checkpoint of the current state. Their output goes to
    ``<model_dir>/export/<exporter's name>``. This directory outlives the process, so exporters that
    use earlier results (``BestExporter``) continue in a resumed trial.

    Args:
        exporters: A tuple of exporters.
        estimator: The user's estimator.
        config: The run configuration.
        eval_name: ``EvalSpec.name``.
    """

    def __init__(
        self, exporters: Any, *, estimator: Any, config: Any, eval_name: str | None
    ) -> None:
        self._exporters = tuple(exporters)
        self._estimator = estimator
        self._config = config
        self._model_dir = Path(config.model_dir)
        self._eval_dir = self._model_dir / (f"eval_{eval_name}" if eval_name else "eval")

    def run(
        self,
        training: TrainingSession,
        values: Mapping[str, Any],
        *,
        save: Callable[[Path], None],
        is_final: bool,
    ) -> None:
        """Call each exporter.

        Args:
            training: The training session.
            values: Results of the validation.
            save: Writes the training graph's checkpoint into a directory.
            is_final: Whether this is the last planned validation.
        """
        if not self._exporters:
            return
        step = training.global_step()
        # BestExporter reads the results of this trial's earlier processes from event files.
        events = EventFile(str(self._eval_dir))
        events.write_summary(step, result_summary(values))
        events.close()
        estimator = self._own_estimator()
        with tempfile.TemporaryDirectory(prefix="detcore-") as folder:
            save(Path(folder))
            for exporter in self._exporters:
                path = exporter.export(
                    estimator=estimator,
                    export_path=str(self._model_dir / "export" / exporter.name),
                    checkpoint_path=str(Path(folder) / f"model.ckpt-{step}"),
                    eval_result=dict(values),
                    is_the_final_export=is_final,
                )
                if path is not None:
                    export_path = path.decode() if isinstance(path, bytes) else path
                    _logger.info("the exporter %r wrote %s", exporter.name, export_path)

    def _own_estimator(self) -> Any:
        """Return an estimator with the user's model and the trial's directory."""
        user, module = self._estimator, tf_estimator()
        if module is not None and not isinstance(user, Estimator):
            return module.Estimator(model_fn=user.model_fn, config=self._config)
        return Estimator(user.model_fn, config=self._config)
