"""Define the searcher section: the search method, its length and its metric."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from detcore.config._fields import DUMP_ANY, Lenient, Name, Section, by_tag, setting, tagged
from detcore.config._length import TrainingLength, UnitlessLength

__all__ = ["RETIRED_SEARCHERS", "SEARCHERS", "PluginSearcher", "Searcher", "SearcherField"]

_MaxLength = Annotated[
    UnitlessLength,
    Field(description="How long each trial trains at most. A bare number means batches."),
]
_MaxTrials = Annotated[int, Field(ge=1, description="How many trials to run in all.")]
_Concurrent = Annotated[
    int, Field(ge=0, description="How many trials may run at one time; 0 = no limit.")
]
_Divisor = Annotated[
    float, Field(gt=1, description="One in this many trials is promoted to the next rung.")
]
_StopOnce = Annotated[
    bool, Field(description="Decide once per rung, and never continue a trial stopped there.")
]


class _Common(Section):
    metric: Name = setting("The validation metric that ranks trials.")
    smaller_is_better: bool = setting("Whether lower values of it are better.", True)
    source_trial_id: int | None = setting(
        "Start from the latest checkpoint of this trial.", None, ge=1
    )
    source_checkpoint_uuid: str | None = setting("Start from this checkpoint.", None, min_length=1)


class SingleSearcher(_Common):
    """One trial."""

    name: Literal["single"] = setting("One trial.")
    max_length: _MaxLength


class RandomSearcher(_Common):
    """Trials with hyperparameters drawn at random."""

    name: Literal["random"] = setting("Hyperparameters drawn at random.")
    max_length: _MaxLength
    max_trials: _MaxTrials
    max_concurrent_trials: _Concurrent = 16


class GridSearcher(_Common):
    """Every combination of a grid of hyperparameters."""

    name: Literal["grid"] = setting("Every combination of a grid.")
    max_length: _MaxLength
    max_concurrent_trials: _Concurrent = 16


class AdaptiveAshaSearcher(_Common):
    """Many short trials of which the best are continued (asynchronous successive halving)."""

    name: Literal["adaptive_asha"] = setting("Many short trials of which the best are continued.")
    max_length: _MaxLength
    max_trials: _MaxTrials
    mode: Literal["conservative", "standard", "aggressive"] = setting(
        "How early trials are stopped.", "standard"
    )
    divisor: _Divisor = 4.0
    max_rungs: int = setting("How often a trial is judged at most.", 5, ge=1)
    bracket_rungs: list[Annotated[int, Field(ge=1)]] = setting(
        "Rungs of each bracket; empty = chosen by 'mode'.", []
    )
    max_concurrent_trials: _Concurrent = 16
    stop_once: _StopOnce = False


class AsyncHalvingSearcher(_Common):
    """One bracket of asynchronous successive halving."""

    name: Literal["async_halving"] = setting("One bracket of asynchronous successive halving.")
    max_length: _MaxLength
    max_trials: _MaxTrials
    num_rungs: int = setting("How often a trial is judged.", ge=1)
    divisor: _Divisor = 4.0
    max_concurrent_trials: _Concurrent = 16
    stop_once: _StopOnce = False


class OptunaSearcher(_Common):
    """Trials whose hyperparameters Optuna suggests."""

    name: Literal["optuna"] = setting("Hyperparameters that Optuna suggests.")
    max_length: _MaxLength
    max_trials: _MaxTrials
    max_concurrent_trials: _Concurrent = 16
    sampler: str | dict[str, Any] = setting(
        "An Optuna sampler: its name, or 'name' and arguments.", "TPESampler"
    )
    pruner: str | dict[str, Any] = setting(
        "An Optuna pruner: its name, or 'name' and arguments.", "NopPruner"
    )
    pruning_period: int = setting(
        "Ask the pruner this often, in the unit of 'max_length'; 0 = only at the end.", 0, ge=0
    )


class CustomSearcher(_Common):
    """A search method written by the user."""

    name: Literal["custom"] = setting("A search method of your own.")
    unit: Literal["batches", "records", "epochs"] | None = setting(
        "Unit of the lengths that the search method gives.", None
    )


class PbtReplaceFunction(Section):
    """Which trials of a population are replaced."""

    truncate_fraction: float = setting(
        "This part of the population, the worst, is replaced by the best.", ge=0, le=0.5
    )


class PbtExploreFunction(Section):
    """How a copied trial's hyperparameters change."""

    resample_probability: float = setting(
        "Probability of drawing a hyperparameter again.", ge=0, le=1
    )
    perturb_factor: float = setting(
        "Otherwise it is multiplied by 1 plus or minus this.", ge=0, le=1
    )


class PbtSearcher(_Common):
    """Population-based training."""

    name: Literal["pbt"] = setting("Population-based training.")
    population_size: int = setting("How many trials train side by side.", ge=1)
    num_rounds: int = setting("How often the population is judged.", ge=1)
    length_per_round: Annotated[
        TrainingLength, Field(description="How long each trial trains between two judgements.")
    ]
    replace_function: PbtReplaceFunction = setting("Which trials are replaced.")
    explore_function: PbtExploreFunction = setting("How hyperparameters change.")


class PluginSearcher(_Common, Lenient):
    """A searcher that a plugin provides; its own settings are passed on unchanged."""

    name: Name = setting("Name under which the plugin registers the searcher.")
    max_length: UnitlessLength | None = setting(
        "How long each trial trains at most, if the method asks for it.", None
    )


RETIRED_SEARCHERS = {
    "adaptive": "adaptive_asha",
    "adaptive_simple": "adaptive_asha",
    "sync_halving": "async_halving",
}

Searcher = (
    SingleSearcher
    | RandomSearcher
    | GridSearcher
    | AdaptiveAshaSearcher
    | AsyncHalvingSearcher
    | OptunaSearcher
    | CustomSearcher
    | PbtSearcher
)
SEARCHERS = by_tag("name", get_args(Searcher))
SearcherField = Annotated[
    Searcher,
    Field(discriminator="name"),
    tagged("name", "searcher", SEARCHERS, other=PluginSearcher, retired=RETIRED_SEARCHERS),
    DUMP_ANY,
]
