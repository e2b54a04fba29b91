"""Helpers of the search method clauses: create the method and run simulated searches."""

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
"""Fraction of reports replaced by exits, by reason."""


class SearcherAccess(Suite):
    """Declarations that a subclass of `detcore_testing.SearcherSuite` makes about its method.

    Attributes:
        searcher: Registered name of the method (``searcher.name``).
        method: Class of an unregistered method as ``"module:Class"``.
        num_examples: Number of event orders that hypothesis tries per clause and setup.
        max_events: Number of events after which a search counts as endless.
    """

    capabilities: ClassVar[Mapping[str, str]] = {
        "draws": "hyperparameters are random, and depend on the seed and the trial",
        "max-concurrent": "max_concurrent_trials limits the number of concurrent trials",
        "max-length": "no trial trains beyond max_length",
        "max-trials": "if no trial fails there are exactly max_trials trials",
        "smaller-is-better": "negating all metrics and smaller_is_better gives the same answers",
    }

    searcher: ClassVar[str] = ""
    method: ClassVar[str] = ""
    num_examples: ClassVar[int] = 15
    max_events: ClassVar[int] = 5000
    _searches: ClassVar[Sequence[tuple[SearchSetup, SearchSimulation]]] = ()

    def setups(self) -> Sequence[SearchSetup]:
        """Return the setups to test, one for each way to use the method."""
        raise NotImplementedError(f"{type(self).__name__} must define setups")

    def target(self) -> str:
        """Return the method's class as ``"module:Class"``."""
        if self.method:
            return self.method
        registration = find_registered(PluginManager.searchers, "search method", self.searcher)
        return str(registration.method)

    def make(self, setup: SearchSetup) -> SearchMethod:
        """Create the method."""
        method: SearchMethod = import_object(self.target())(setup)
        return method

    def metric(self, hparams: Mapping[str, Any], length: int) -> float:
        """Return the metric of a trial. The default is derived from its hyperparameters."""
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
        """Run a search. An invalid answer or a changed setup raises `AssertionError`."""
        setup_copy = copy.deepcopy(setup)
        search = SearchSimulation(
            self.make(setup_copy),
            seed=seed,
            metric=metric or self.metric,
            failing=failing,
            max_events=self.max_events,
        ).run()
        expect_equal(setup_copy, setup, "the setup after a search")
        return search

    def simulate_all(self) -> Sequence[tuple[SearchSetup, SearchSimulation]]:
        """Return searches of each setup, without failures and with some failing trials.

        All clauses share these searches.
        """
        cls = type(self)
        assert self.setups(), "setups() returned no setup"
        if "_searches" not in vars(cls):
            cls._searches = [
                (setup, self.simulate(setup, seed=seed, failing=failing))
                for setup in self.setups()
                for seed in range(3)
                for failing in (None, SOME_FAIL)
            ]
        return cls._searches
