"""Train a run again: ``python -m detcore_replay._process FOLDER START STOP SAVED``.

With ``failing`` in place of SAVED the process trains until it fails.
"""

from __future__ import annotations

import dataclasses
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from detcore import core
from detcore.data import StepDigests
from detcore.environment import read_environment
from detcore.trial import find_framework, import_trial_class, open_trial
from detcore_replay._failing import FailureProbe, write_outcome
from detcore_replay._probe import Probe, ReplayEnd

FAILING = "failing"


def main(folder: Path, start: int, stop: int, saved: set[int]) -> int:
    """Train the trial that the environment names up to a step."""
    _train(lambda: Probe(folder, start=start, stop=stop, saved=saved))
    return 0


def main_failing(folder: Path, start: int, stop: int) -> int:
    """Train the trial that the environment names until it fails, at most up to a step."""
    try:
        _train(lambda: FailureProbe(folder, start=start, stop=stop))
    except Exception as error:  # noqa: BLE001  (it is the result)
        traceback.print_exc()
        write_outcome(folder, error)
        return 1
    return 0


def _train(make_digests: Callable[[], StepDigests]) -> None:
    info = core.read_trial_info(read_environment())
    assert info.settings is not None  # checked by find_run and read_bundle
    model_dir = Path(info.model_dir)
    sys.path.insert(0, str(model_dir))
    with core.init(distributed=core.DistributedContext()) as context:
        trial_class = import_trial_class(info.config["entrypoint"], model_dir)
        framework = find_framework(trial_class, context.plugins.frameworks())
        with open_trial(context, framework, info.settings) as opened:
            digests = make_digests()
            digests.describe(plugins=context.plugins.versions())
            opened.context.setup = dataclasses.replace(opened.context.setup, digests=digests)
            try:
                opened.train(trial_class(opened.context))
            except ReplayEnd:
                pass
            except Exception:
                digests.log_last_batch()
                raise
            finally:
                digests.close()


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[3] == FAILING:
        sys.exit(main_failing(Path(words[0]), int(words[1]), int(words[2])))
    steps = {int(word) for word in words[3].split(",") if word}
    sys.exit(main(Path(words[0]), int(words[1]), int(words[2]), steps))
