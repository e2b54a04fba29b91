"""Deep Q-learning in a small corridor with a replay buffer and a target network."""

import copy
import random
from collections import deque

import torch
from torch import nn

from detcore import core

EPOCHS = 4
torch.manual_seed(9)
q = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
target = copy.deepcopy(q)
optimizer = torch.optim.Adam(q.parameters(), 0.01)
rng = random.Random(9)
buffer = deque(maxlen=40)
position, epsilon, step, rewards = 0, 1.0, 0, 0.0
one_hot = torch.eye(6)

with core.init(max_length={"batches": 40}, resume=True) as context:
    if context.info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
            state = torch.load(path / "state.pt", weights_only=False)
        q.load_state_dict(state["q"])
        target.load_state_dict(state["target"])
        optimizer.load_state_dict(state["optimizer"])
        rng.setstate(state["rng"])
        buffer = state["buffer"]
        position, epsilon, step, rewards = state["counters"]
    for operation in context.searcher.operations():
        while step < operation.length:
            if rng.random() < epsilon:
                action = rng.randrange(2)
            else:
                action = int(q(one_hot[position]).argmax())
            following = min(5, max(0, position + (1 if action else -1)))
            reward = 1.0 if following == 5 else 0.0
            buffer.append((position, action, reward, following))
            position = 0 if following == 5 else following
            rewards += reward
            sample = [buffer[rng.randrange(len(buffer))] for _ in range(8)]
            states, actions, gains, nexts = map(torch.tensor, zip(*sample))
            with torch.no_grad():
                goal = gains + 0.9 * (1 - gains) * target(one_hot[nexts]).max(1).values
            value = q(one_hot[states]).gather(1, actions[:, None]).squeeze(1)
            loss = nn.functional.smooth_l1_loss(value, goal)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            epsilon = max(0.1, epsilon * 0.95)
            step += 1
            if step % 8 == 0:
                target.load_state_dict(q.state_dict())
            context.train.report_training_metrics(step, {"loss": loss.item(), "rewards": rewards})
            if context.preempt.should_preempt() or step % 7 == 0 or step == operation.length:
                with context.checkpoint.store_path({"steps_completed": step}) as (path, _):
                    state = {
                        "q": q.state_dict(),
                        "target": target.state_dict(),
                        "buffer": buffer,
                        "optimizer": optimizer.state_dict(),
                        "rng": rng.getstate(),
                        "counters": (position, epsilon, step, rewards),
                    }
                    torch.save(state, path / "state.pt")
        operation.report_completed(rewards)
print("final", rewards, epsilon, q(one_hot).sum().item())
