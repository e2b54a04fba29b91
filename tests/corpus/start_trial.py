"""The entry point of the corpus's trials: the class of the user, and a kill if it is due."""

import os
import sys

sys.path.append(os.environ["CORPUS_SUPPORT"])

from kill_points import prepare_kill

prepare_kill()

from model_def import Trial  # type: ignore[import-not-found]  # noqa: E402, F401
