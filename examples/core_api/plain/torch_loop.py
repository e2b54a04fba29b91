"""Train a network on scans of handwritten digits with PyTorch."""

import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import nn

HPARAMS = {"learning_rate": 0.1, "global_batch_size": 32}
NUM_TRAINING = 1500


def main() -> None:
    train(**HPARAMS)


def train(*, learning_rate: float, global_batch_size: int) -> None:
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
    steps = 0
    for _ in range(5):
        for batch in torch.randperm(NUM_TRAINING).split(global_batch_size):
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            if steps % 10 == 0:
                print(f"step {steps}: loss {loss.item():.4f}")
        print(f"step {steps}: accuracy {accuracy(model, x[NUM_TRAINING:], y[NUM_TRAINING:]):.4f}")
    save_file(model.state_dict(), "model.safetensors")


@torch.no_grad()
def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    model.eval()
    result = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return result


if __name__ == "__main__":
    main()
