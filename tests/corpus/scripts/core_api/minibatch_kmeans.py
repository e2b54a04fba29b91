"""Mini-batch k-means on a stream of chunks; the state is kept as arrays."""

import numpy as np
from sklearn.cluster import MiniBatchKMeans

from detcore import core

EPOCHS = 4


def read_chunk(number):
    rng = np.random.default_rng([5, number])
    return rng.normal(size=(24, 3)) + rng.integers(0, 4, size=(24, 1)) * 2


kmeans = MiniBatchKMeans(4, random_state=5, n_init=1, reassignment_ratio=0)
with core.init(max_length={"batches": 20}, resume=True) as context:
    step = context.info.steps_completed
    if context.info.latest_checkpoint is not None:
        kmeans.partial_fit(read_chunk(0))
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
            arrays = np.load(path / "kmeans.npz")
            kmeans.cluster_centers_ = arrays["centers"]
            kmeans._counts = arrays["counts"]
            kmeans.n_steps_ = int(arrays["n_steps"])
    for operation in context.searcher.operations():
        while step < operation.length:
            kmeans.partial_fit(read_chunk(step))
            step += 1
            context.train.report_training_metrics(step, {"inertia": kmeans.score(read_chunk(step))})
            if context.preempt.should_preempt() or step % 4 == 0:
                with context.checkpoint.store_path({"steps_completed": step}) as (path, _):
                    np.savez(
                        path / "kmeans.npz",
                        centers=kmeans.cluster_centers_,
                        counts=kmeans._counts,
                        n_steps=kmeans.n_steps_,
                    )
        operation.report_completed(-kmeans.score(read_chunk(1000)))
centers = kmeans.cluster_centers_
print("final", centers.tolist())
