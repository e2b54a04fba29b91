"""Register the toy framework, a slow storage and search methods."""

from detcore import hookimpl
from detcore.plugins import SearcherType, StorageType
from detcore.types import Framework


@hookimpl
def detcore_register_framework() -> Framework:
    return Framework(
        name="toy",
        trial_class="detcore_toy:ToyTrial",
        context_class="detcore:TrialContext",
        controller="detcore_toy:ToyController",
        load_checkpoint="detcore_toy:load_weights",
        reads=("oldtoy",),
        several_workers=True,
        import_variables=("TOY_",),
        notices=("NOTICE of a framework",),
    )


@hookimpl
def detcore_register_storage() -> StorageType:
    return StorageType(
        name="slow",
        schemes=(),
        settings="detcore_toy.slow_storage:SlowSettings",
        backend="detcore_toy.slow_storage:open_slow",
    )


@hookimpl
def detcore_register_searcher() -> list[SearcherType]:
    searchers = [
        SearcherType(name=name, method=f"detcore_toy.searchers:{name.capitalize()}")
        for name in ("moody", "hollow", "broken")
    ]
    return [
        SearcherType(
            name="doubling",
            method="detcore_toy.searchers:Doubling",
            settings="detcore_toy.searchers:DoublingSettings",
        ),
        *searchers,
    ]
