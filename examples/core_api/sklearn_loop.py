"""Train a linear classifier on scans of handwritten digits with scikit-learn, batch by batch."""

import argparse

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

from detcore import core
from detcore.data import IndexSampler

HPARAMS = {"learning_rate": 0.1, "global_batch_size": 32}
NUM_TRAINING = 1500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=235)
    parser.add_argument("--checkpoint-storage", help="a directory or URL, such as s3://bucket/runs")
    args = parser.parse_args()
    with core.init(
        distributed=core.DistributedContext.from_env(),
        checkpoint_storage=args.checkpoint_storage,
        script=core.ScriptExperiment(hparams=HPARAMS),
        max_length={"batches": args.steps},
        resume=True,
    ) as context:
        train(context, **context.info.hparams)


def train(context: core.Context, *, learning_rate: float, global_batch_size: int) -> None:
    digits = load_digits()
    x, y = digits.data / 16, digits.target
    ranks, rank, steps = context.distributed, context.distributed.rank, context.info.steps_completed
    model = SGDClassifier("log_loss", learning_rate="constant", eta0=learning_rate, shuffle=False)
    if context.info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
            arrays = np.load(path / "model.npz")
            model.coef_, model.intercept_ = arrays["coef"], arrays["intercept"]
    sampler = IndexSampler(
        NUM_TRAINING, global_batch_size // ranks.size, shuffle=True,
        seed=context.info.trial_seed, rank=rank, world_size=ranks.size,
    )  # fmt: skip
    for operation in context.searcher.operations():
        while steps < operation.length:
            batch = sampler.batch(steps)
            model.partial_fit(x[batch], y[batch], classes=range(10))
            model.coef_ = np.mean(ranks.allgather(model.coef_), axis=0)
            model.intercept_ = np.mean(ranks.allgather(model.intercept_), axis=0)
            steps += 1
            if steps % 10 == 0 and rank == 0:
                loss = log_loss(y[batch], model.predict_proba(x[batch]), labels=range(10))
                context.train.report_training_metrics(steps, {"loss": loss})
            is_preempted = context.preempt.should_preempt()
            if rank == 0 and (is_preempted or steps % 50 == 0 or steps == operation.length):
                with context.checkpoint.store_path({"steps_completed": steps}) as (path, _):
                    np.savez(path / "model.npz", coef=model.coef_, intercept=model.intercept_)
            if is_preempted:
                raise SystemExit(75)
        if rank == 0:
            metric = model.score(x[NUM_TRAINING:], y[NUM_TRAINING:])
            context.train.report_validation_metrics(steps, {"accuracy": metric})
            operation.report_completed(metric)


if __name__ == "__main__":
    main()
