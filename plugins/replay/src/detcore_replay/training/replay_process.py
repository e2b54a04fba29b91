"""Train a run again, as ``python -m``: ``FOLDER START STOP SAVED [WORKERS]``.

For several workers, it starts one process per worker.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from detcore import core
from detcore.data import StepDigests
from detcore.environment import read_environment
from detcore.trial import find_framework, import_trial_class, open_trial
from detcore_replay.training.step_probe import Probe, ReplayEnd


def main(folder: Path, start: int, stop: int, saved: set[int]) -> int:
    """Train the trial of the environment up to a step."""
    environment = read_environment()
    info = core.read_trial_info(environment)
    model_dir = Path(info.model_dir)
    sys.path.insert(0, str(model_dir))
    # Ignore the ranks of a launcher around the command.
    has_several_workers = environment.num_workers > 1
    place = core.DistributedContext.from_env() if has_several_workers else core.DistributedContext()
    with core.init(distributed=place) as context:
        trial_class = import_trial_class(str(info.settings.entrypoint), model_dir)
        framework = find_framework(trial_class, context.plugins.frameworks())
        with open_trial(context, framework) as setup:
            digests = Probe(
                folder / StepDigests.file_name(1, rank=place.rank),
                start=start,
                stop=stop,
                saved=() if place.rank else saved,
                place=place,
            )
            digests.describe(plugins=context.plugins.versions())
            setup.context.setup = dataclasses.replace(setup.context.setup, digests=digests)
            try:
                setup.train(trial_class(setup.context))
            except ReplayEnd:
                pass
            finally:
                digests.close()
    return 0


def _start_workers(words: list[str], num_workers: int) -> int:
    from detcore.launch import run_workers
    from detcore.launch.nodes import find_services

    environment = read_environment()
    return run_workers(
        [sys.executable, "-m", "detcore_replay.training.replay_process", *words],
        num_workers=num_workers,
        services=find_services(
            disabled_plugins=environment.disabled_plugins,
            allowed_plugins=environment.allowed_plugins,
        ),
        torch=False,
        variables={},
        notice=print,
    )


if __name__ == "__main__":
    words = sys.argv[1:]
    if len(words) > 4:
        sys.exit(_start_workers(words[:4], int(words[4])))
    steps = {int(word) for word in words[3].split(",") if word}
    sys.exit(main(Path(words[0]), int(words[1]), int(words[2]), steps))
