"""Access for the search-method clauses: make the method, and run simulated searches."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from detcore.plugins import PluginManager
from detcore.search import ExitReason, SearchMethod, SearchSetup
from detcore.trial import import_object
from detcore_testing.searcher.searcher_simulation import SearchSimulation
from detcore_testing.suite_clauses import Suite, expect_equal, find_registered

SOME_FAIL = {ExitReason.ERRORED: 0.08, ExitReason.INVALID_HP: 0.08, ExitReason.STOPPED: 0.04}
"""Which part of the reports are exits instead, where some trials fail."""


class SearcherAccess(Suite):
    """Declarations that a subclass of `detcore_testing.SearcherSuite` makes about its method.

    Attributes:
        searcher: The name under which a plugin registers the method (``searcher.name``), or
        method: its class as ``"module:Class"``, where it is not registered.
        num_examples: How many orders of events hypothesis tries per clause and setup.
        max_events: A search that has not ended after this many events counts as endless.
    """

    capabilities: ClassVar[Mapping[str, str]] = {
        "draws": "hyperparameters are drawn: by the seed, and not the same for all trials",
        "max-concurrent": "max_concurrent_trials bounds how many trials train at one time",
        "max-length": "no trial is trained beyond max_length",
        "max-trials": "where no trial fails there are max_trials of them, no more and no less",
        "smaller-is-better": "with the signs of all metrics turned, and smaller_is_better too, "
        "it answers the same",
    }

    searcher: ClassVar[str] = ""
    method: ClassVar[str] = ""
    num_examples: ClassVar[int] = 15
    max_events: ClassVar[int] = 5000
    _searches: ClassVar[Sequence[tuple[SearchSetup, SearchSimulation]]] = ()

    def setups(self) -> Sequence[SearchSetup]:
        """Return the setups to make the method from: one setup for each way to use it."""
        raise NotImplementedError(f"{type(self).__name__} has to define setups")

    def target(self) -> str:
        """Return the method's class as ``"module:Class"``."""
        if self.method:
            return self.method
        found = find_registered(PluginManager.searchers, "search method", self.searcher)
        return str(found.method)

    def make(self, setup: SearchSetup) -> SearchMethod:
        """Make the method."""
        made: SearchMethod = import_object(self.target())(setup)
        return made

    def metric(self, hparams: Mapping[str, Any], length: int) -> float:
        """Return the metric of a trial; default: a number that its hyperparameters give."""
        text = json.dumps(hparams, sort_keys=True, default=str)
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")
        return number / 2**48 + 1.0 / length

    def simulate(
        self,
        setup: SearchSetup,
        *,
        seed: int = 0,
        failing: Mapping[ExitReason, float] | None = None,
        metric: Callable[[Mapping[str, Any], int], float] | None = None,
    ) -> SearchSimulation:
        """Run a whole search; an invalid answer, or a changed setup, is an `AssertionError`."""
        own = copy.deepcopy(setup)
        search = SearchSimulation(
            self.make(own),
            seed=seed,
            metric=metric or self.metric,
            failing=failing,
            max_events=self.max_events,
        ).run()
        expect_equal(own, setup, "the setup after a search")
        return search

    def several(self) -> Sequence[tuple[SearchSetup, SearchSimulation]]:
        """Return each setup with searches where no trial fails, and where some do.

        They are run once for all clauses that look at them.
        """
        cls = type(self)
        assert self.setups(), "setups() returned none"
        if "_searches" not in vars(cls):
            cls._searches = [
                (setup, self.simulate(setup, seed=seed, failing=failing))
                for setup in self.setups()
                for seed in range(3)
                for failing in (None, SOME_FAIL)
            ]
        return cls._searches
