"""Cross-validation: a context for each fold, with LBFGS on all records of the fold."""

import numpy as np
import torch
from torch import nn

from detcore import core

EPOCHS = 3
torch.manual_seed(8)
x = torch.randn(60, 3)
y = torch.tanh(x.sum(1, keepdim=True))
order = np.random.default_rng(8).permutation(60)
scores, models = [], []
for fold in range(3):
    torch.manual_seed(fold)
    held_out = order[fold * 20 : (fold + 1) * 20]
    train = np.setdiff1d(order, held_out)
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=3, history_size=4)
    script = core.ScriptExperiment(hparams={"fold": fold})
    with core.init(script=script, max_length={"batches": 10}, resume=True) as context:
        step = context.info.steps_completed
        if context.info.latest_checkpoint is not None:
            with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
                state = torch.load(path / "state.pt")
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        for operation in context.searcher.operations():
            while step < operation.length:

                def closure():
                    optimizer.zero_grad()
                    loss = nn.functional.mse_loss(model(x[train]), y[train])
                    loss.backward()
                    return loss

                optimizer.step(closure)
                step += 1
                if context.preempt.should_preempt() or step % 3 == 0 or step == operation.length:
                    with context.checkpoint.store_path({"steps_completed": step}) as (path, _):
                        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                        torch.save(state, path / "state.pt")
            error = nn.functional.mse_loss(model(x[held_out]), y[held_out]).item()
            context.train.report_validation_metrics(step, {"val_loss": error})
            operation.report_completed(error)
    with torch.no_grad():
        scores.append(nn.functional.mse_loss(model(x[held_out]), y[held_out]).item())
    models.append(model)
print("final", np.mean(scores), scores)
