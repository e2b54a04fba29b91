"""Gradient boosting that grows trees with `warm_start`, and stops at the best number."""

import pickle

import numpy as np
from sklearn.ensemble import GradientBoostingRegressor

from detcore import core

EPOCHS = 3
rng = np.random.default_rng(4)
x = rng.normal(size=(120, 4))
y = np.sin(x[:, 0]) + 0.3 * rng.normal(size=120)
model = GradientBoostingRegressor(
    n_estimators=1,
    subsample=0.7,
    max_features=2,
    warm_start=True,
    random_state=np.random.RandomState(4),
)
history = []
with core.init(max_length={"batches": 12}, resume=True) as context:
    rounds = 0
    if context.info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
            state = pickle.loads((path / "state.pkl").read_bytes())
        model, history, rounds = state["model"], state["history"], state["rounds"]
    for operation in context.searcher.operations():
        while rounds < operation.length:
            model.set_params(n_estimators=2 * (rounds + 1))
            model.fit(x[:90], y[:90])
            rounds += 1
            error = float(np.mean((model.predict(x[90:]) - y[90:]) ** 2))
            history.append(error)
            context.train.report_validation_metrics(rounds, {"val_loss": error})
            is_preempted = context.preempt.should_preempt()
            if is_preempted or rounds % 3 == 0 or rounds == operation.length:
                with context.checkpoint.store_path({"steps_completed": rounds}) as (path, _):
                    state = {"model": model, "history": history, "rounds": rounds}
                    (path / "state.pkl").write_bytes(pickle.dumps(state))
        operation.report_completed(min(history))
predictions = model.predict(x)
print("final", min(history), int(np.argmin(history)), float(predictions.sum()))
