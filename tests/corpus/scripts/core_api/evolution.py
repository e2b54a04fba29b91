"""An evolution strategy with a population, a shrinking step size and the best individual."""

import numpy as np

from detcore import core

EPOCHS = 4
population = np.random.default_rng(2).normal(size=(20, 6))
best, best_score, sigma, generation = population[0], np.inf, 0.5, 0


def score(individuals):
    return np.sum((individuals - np.arange(6)) ** 2, axis=1)


with core.init(max_length={"batches": 32}, resume=True) as context:
    if context.info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
            saved = np.load(path / "population.npz")
            population, best = saved["population"], saved["best"]
            best_score, sigma = float(saved["best_score"]), float(saved["sigma"])
        generation = context.info.steps_completed
    for operation in context.searcher.operations():
        while generation < operation.length:
            rng = np.random.default_rng([2, generation])
            scores = score(population)
            if scores.min() < best_score:
                best, best_score = population[scores.argmin()].copy(), float(scores.min())
            parents = population[np.argsort(scores)[:5]]
            children = parents[rng.integers(5, size=20)]
            population = children + sigma * rng.normal(size=(20, 6))
            sigma *= 0.97
            generation += 1
            context.train.report_training_metrics(generation, {"best": best_score, "sigma": sigma})
            if context.preempt.should_preempt() or generation % 6 == 0 or generation == 32:
                with context.checkpoint.store_path({"steps_completed": generation}) as (path, _):
                    np.savez(
                        path / "population.npz",
                        population=population,
                        best=best,
                        best_score=best_score,
                        sigma=sigma,
                    )
        context.train.report_validation_metrics(generation, {"best": best_score})
        operation.report_completed(best_score)
print("final", best_score, best.tolist())
