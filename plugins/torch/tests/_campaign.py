"""The campaign of kills: scripts of each library, killed at random, against the library alone."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _killed_scripts import Kill, Script

from detcore.data import verify_ledger
from detcore.errors import LedgerError

__all__ = ["FAMILIES", "Case", "Outcome"]

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
TASKS = ("points", "digits", "text")
# The module of each family, imported before processes are forked.
FAMILIES = {
    "trainer": "detcore_torch.for_transformers",
    "lightning": "detcore_torch.for_lightning",
    "accelerate": "detcore_torch.for_accelerate",
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run that was killed differs from one that was not.

    Attributes:
        kills: SIGKILLs that hit it.
        differing: Objects whose digests differ.
        twice: Uses of a record that repeat it within its epoch.
        never: Records that an epoch did not use.
        steps: Steps that no ledger has.
    """

    kills: int
    differing: tuple[str, ...]
    twice: int
    never: int
    steps: int

    @property
    def is_exact(self) -> bool:
        """Whether nothing differs."""
        return not (self.differing or self.twice or self.never or self.steps)


@dataclasses.dataclass(frozen=True)
class Case:
    """One script in one setting.

    Attributes:
        family: The library.
        task: What it trains.
        workers: Processes that load data.
        ranks: Processes that train.
    """

    family: str
    task: str
    workers: int
    ranks: int

    def run(self, folder: Path, *, kills: int, seed: int = 1, alone: bool = False) -> Outcome:
        """Train with and without kills, and compare.

        Args:
            folder: For everything that is written; made here.
            kills: SIGKILLs before it may train to its end.
            seed: Decides where the kills fall.
            alone: Whether the library resumes by itself, without detcore.
        """
        importlib.import_module(FAMILIES[self.family])
        # About four steps for each kill, so that it is hit before its end.
        epochs = max(2, kills * 5 * self.ranks * (2 if self.task == "points" else 1) // 10)
        arguments = [f"--epochs={epochs}", f"--workers={self.workers}", f"--ranks={self.ranks}"]
        arguments += ["--alone"] if alone else []
        path = SCRIPTS / f"{self.family}_{self.task}.py"
        folder.mkdir(parents=True)
        whole = Script(path, folder / "whole", arguments, self.ranks)
        broken = Script(path, folder / "broken", arguments, self.ranks)
        if code := whole.run_to(None):
            raise AssertionError(f"{self} ended with {code}:\n{whole.output()[-4000:]}")
        whole.preload()
        done = 0
        for number in range(kills):
            kill = Kill.drawn(f"{seed}-{self}-{number}", ranks=self.ranks)
            code = broken.run_to(kill)
            if code == 0:
                break
            if code != -9:
                raise AssertionError(f"{self} ended with {code}:\n{broken.output()[-4000:]}")
            done += 1
        else:
            if code := broken.run_to(None):
                raise AssertionError(f"{self} ended with {code}:\n{broken.output()[-4000:]}")
        return compared(whole, broken, done)


def compared(whole: Script, broken: Script, kills: int) -> Outcome:
    """Compare the results, the ledger, and (with detcore) the validations of two runs."""
    expected, found = whole.result(), broken.result()
    differing = {name for name in expected.keys() | found.keys()
                 if expected.get(name) != found.get(name)}  # fmt: skip
    if (whole.folder / "home").exists() and whole.metrics("validation") != broken.metrics(
        "validation"
    ):
        differing.add("validation metrics")
    ledger = verify_ledger(broken.folder)
    return Outcome(
        kills=kills,
        differing=tuple(sorted(differing)),
        twice=sum(epoch.num_twice for epoch in ledger.epochs),
        never=sum(epoch.num_never or 0 for epoch in ledger.epochs),
        steps=ledger.missing_steps,
    )
