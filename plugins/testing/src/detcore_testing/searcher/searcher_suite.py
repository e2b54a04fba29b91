"""The contract that every search method has to keep, however it chooses."""

from __future__ import annotations

from detcore_testing.searcher.searcher_answers import AnsweringClauses
from detcore_testing.searcher.searcher_repeat import RepeatingClauses


class SearcherSuite(AnsweringClauses, RepeatingClauses):
    """The contract of `detcore.search.SearchMethod`, clause by clause.

    A subclass names the method, and returns the setups to make it from; nothing is trained.

    ```python
    class TestGolden(SearcherSuite):
        searcher = "golden"
        declined = {"max-concurrent": "it trains one trial after the other"}

        def setups(self):
            return [SearchSetup(settings={"max_trials": 8}, hyperparameters=SPACE, seed=7,
                                max_length=64)]
    ```
    """
