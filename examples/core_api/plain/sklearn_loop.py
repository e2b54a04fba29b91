"""Train a linear classifier on scans of handwritten digits with scikit-learn, batch by batch."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

HPARAMS = {"learning_rate": 0.1, "global_batch_size": 32}
NUM_TRAINING = 1500


def main() -> None:
    train(**HPARAMS)


def train(*, learning_rate: float, global_batch_size: int) -> None:
    digits = load_digits()
    x, y = digits.data / 16, digits.target
    generator = np.random.default_rng(0)
    model = SGDClassifier("log_loss", learning_rate="constant", eta0=learning_rate, shuffle=False)
    steps = 0
    for _ in range(5):
        order = generator.permutation(NUM_TRAINING)
        for start in range(0, NUM_TRAINING, global_batch_size):
            batch = order[start : start + global_batch_size]
            model.partial_fit(x[batch], y[batch], classes=range(10))
            steps += 1
            if steps % 10 == 0:
                loss = log_loss(y[batch], model.predict_proba(x[batch]), labels=range(10))
                print(f"step {steps}: loss {loss:.4f}")
        print(f"step {steps}: accuracy {model.score(x[NUM_TRAINING:], y[NUM_TRAINING:]):.4f}")
    np.savez("model.npz", coef=model.coef_, intercept=model.intercept_)


if __name__ == "__main__":
    main()
