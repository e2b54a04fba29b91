"""Suite for the contract of search methods."""

from __future__ import annotations

from detcore_testing.searcher.searcher_answers import AnsweringClauses
from detcore_testing.searcher.searcher_repeat import RepeatingClauses


class SearcherSuite(AnsweringClauses, RepeatingClauses):
    """Tests each clause of the `detcore.search.SearchMethod` contract, without training.

    A subclass names the method and returns the setups to test.

    ```python
    class TestGolden(SearcherSuite):
        searcher = "golden"
        declined = {"max-concurrent": "trials run one after another"}

        def setups(self):
            return [SearchSetup(settings={"max_trials": 8}, hyperparameters=SPACE, seed=7,
                                max_length=64)]
    ```
    """
