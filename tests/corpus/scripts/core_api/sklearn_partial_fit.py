"""scikit-learn's `partial_fit` with a scaler that is fitted batch by batch."""

import pickle

import numpy as np
from sklearn.linear_model import SGDClassifier
from sklearn.preprocessing import StandardScaler

from detcore import core
from detcore.data import IndexSampler

EPOCHS = 4
rng = np.random.default_rng(3)
x = rng.normal(3, 2, size=(112, 6))
y = (x[:, 0] > x[:, 1]).astype(int)
model = SGDClassifier("log_loss", learning_rate="adaptive", eta0=0.1, average=10, random_state=3)
scaler = StandardScaler()
sampler = IndexSampler(96, 16, shuffle=True, seed=3)

with core.init(max_length={"batches": 24}, resume=True) as context:
    step = 0
    if context.info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
            model, scaler = pickle.loads((path / "model.pkl").read_bytes())
        step = context.info.steps_completed
    for operation in context.searcher.operations():
        while step < operation.length:
            batch = sampler.batch(step)
            scaler.partial_fit(x[batch])
            model.partial_fit(scaler.transform(x[batch]), y[batch], classes=[0, 1])
            step += 1
            if context.preempt.should_preempt() or step % 5 == 0 or step == operation.length:
                with context.checkpoint.store_path({"steps_completed": step}) as (path, _):
                    (path / "model.pkl").write_bytes(pickle.dumps((model, scaler)))
        accuracy = model.score(scaler.transform(x[96:]), y[96:])
        context.train.report_validation_metrics(step, {"accuracy": accuracy})
        operation.report_completed(accuracy)
coefficients = model.coef_
print("final", accuracy, coefficients.tolist())
