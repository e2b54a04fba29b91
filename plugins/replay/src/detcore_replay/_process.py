"""Train a replay: ``python -m detcore_replay._process FOLDER START STOP SAVED``."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from detcore import core
from detcore.environment import read_environment
from detcore.trial import find_framework, import_trial_class, open_trial
from detcore_replay._probe import Probe, ReplayEnd


def main(folder: Path, start: int, stop: int, saved: set[int]) -> int:
    """Train the trial that the environment names up to a step."""
    info = core.read_trial_info(read_environment())
    assert info.settings is not None  # checked by find_run
    model_dir = Path(info.model_dir)
    sys.path.insert(0, str(model_dir))
    with core.init(distributed=core.DistributedContext()) as context:
        trial_class = import_trial_class(info.config["entrypoint"], model_dir)
        framework = find_framework(trial_class, context.plugins.frameworks())
        with open_trial(context, framework, info.settings) as opened:
            probe = Probe(folder, start=start, stop=stop, saved=saved)
            opened.context.setup = dataclasses.replace(opened.context.setup, digests=probe)
            try:
                opened.train(trial_class(opened.context))
            except ReplayEnd:
                pass
            finally:
                probe.close()
    return 0


if __name__ == "__main__":
    words = sys.argv[1:]
    steps = {int(word) for word in words[3].split(",") if word}
    sys.exit(main(Path(words[0]), int(words[1]), int(words[2]), steps))
