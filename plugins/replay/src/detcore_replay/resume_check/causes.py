"""The probable causes of differences."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_MAX_LINES = 3
_GENERATOR = (
    r"(default_rng|RandomState|random\.Random|torch\.Generator|random\.Generator\.\w+)"
    r"\([^)]*\)(?!\.(?!manual_seed))|SystemRandom|urandom|uuid4|PRNGKey\("
)
_DATA = rf"{_GENERATOR}|shuffle|DataLoader\(|Sampler\(|permutation"
_OPTIMIZER = r"optim\.\w+\(|optimizers\.\w+\(|lr_scheduler\.\w+\(|optax\.\w+\("
_STATE = r"^\s*self\.\w+ [-+*/]= |^\s*global |copy\.deepcopy|swa_utils|\bema\b"


class Cause(NamedTuple):
    """A probable cause, the remedy, and a regular expression of the lines of code to change."""

    text: str
    remedy: str
    pattern: str


_UNREPEATABLE = Cause(
    text="training is not repeatable, even without a kill",
    remedy="seed all generators: random, numpy.random, the framework and your own, in that line",
    pattern=_GENERATOR,
)
_CAUSES = {
    "initial state": Cause(
        text="each start creates the model in a different way",
        remedy="draw initial values only from random, numpy.random or the framework",
        pattern=_GENERATOR,
    ),
    "record order": Cause(
        text="the order of the data depends on a generator or a position that is not restored",
        remedy="let detcore order the data: shuffle=True without a generator, or an IndexSampler "
        "with the trial's seed",
        pattern=_DATA,
    ),
    "record content": Cause(
        text="the content of batches depends on a generator that is not restored",
        remedy="create the generator for each record or step: np.random.default_rng([seed, step])",
        pattern=_GENERATOR,
    ),
    "random draw": Cause(
        text="a generator has another state after the resume",
        remedy="draw from random, numpy.random or the framework's generator, or save the state of "
        "the generator with the checkpoint",
        pattern=_GENERATOR,
    ),
    "model": Cause(
        text="the resumed run has other tensors",
        remedy="create all layers and optimizers before training starts",
        pattern=r"requires_grad|add_module|add_param_group|trainable",
    ),
    "optimizer": Cause(
        text="an optimizer or a schedule is not restored",
        remedy="register it: context.wrap_optimizer, accelerator.prepare, or save its state_dict()",
        pattern=_OPTIMIZER,
    ),
    "loss": Cause(
        text="a generator, a counter, an average or a schedule is not in the checkpoint",
        remedy="use a restored generator, or save this state with the checkpoint",
        pattern=f"{_GENERATOR}|{_STATE}",
    ),
}


def find_cause(kind: str, tensors: Sequence[str]) -> Cause:
    """Return the probable cause of a difference.

    Args:
        kind: As in `detcore.data.StepDifference`, or "unrepeatable".
        tensors: Names of the different tensors.
    """
    if kind == "unrepeatable":
        return _UNREPEATABLE
    if kind in ("loss", "tensor"):
        kind = "loss"
        if any(name.startswith("random.") for name in tensors):
            kind = "random draw"
        elif tensors and all(name.startswith("optimizer") for name in tensors):
            kind = "optimizer"
    return _CAUSES[kind]


def find_lines(cause: Cause, folder: Path) -> list[str]:
    """Return lines of Python code that match a cause, with file and number."""
    lines = []
    for parent, _, names in sorted(os.walk(folder)):  # does not follow links
        for path in (Path(parent, name) for name in sorted(names) if name.endswith(".py")):
            text = path.read_text(encoding="utf-8", errors="replace")
            lines += [
                f"{path.relative_to(folder)}:{number}: {line.strip()}"
                for number, line in enumerate(text.splitlines(), 1)
                if re.search(cause.pattern, line) and not line.lstrip().startswith("#")
            ]
    return lines[:_MAX_LINES]
