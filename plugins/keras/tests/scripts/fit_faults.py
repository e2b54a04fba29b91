"""Resume a killed `detcore_keras.fit` with the faults of `test_restore_faults`, one at a time."""

import functools
import json
import sys
from pathlib import Path
from types import SimpleNamespace

from stops import StopAtBatch

sys.path.insert(0, str(Path(__file__).parents[1]))
from _fakes import functional, records, seed_everything
from test_restore_faults import PLANTED, Counting, Lab, Own

import detcore_keras
from detcore.errors import InexactResumeError
from detcore.trial import trial_loop
from detcore_keras.frameworks import keras

callbacks = [
    Counting(),
    Own(),
    keras.callbacks.EarlyStopping("loss", patience=50, restore_best_weights=True),
    keras.callbacks.ReduceLROnPlateau("loss", patience=1, factor=0.5),
    StopAtBatch(),
]
check = trial_loop.check_restored
restore = detcore_keras.keras_controller.KerasController.restore
folders = []


def note_folder(controller, folder):
    folders.append(folder)
    restore(controller, folder)


def check_each(controller, saved, *, reaction):
    """Plant each fault, write the errors, and check the state without a fault."""
    lab = SimpleNamespace(
        controller=controller,
        model=controller._model,
        trial=SimpleNamespace(callbacks=callbacks),
    )
    lab.change = functools.partial(Lab.change, lab)
    errors = {}
    for name, (plant, _) in PLANTED.items():
        if name.endswith("of the trial"):
            continue
        check(controller, saved, reaction=reaction)
        plant(lab)
        errors[name] = "silent"
        try:
            check(controller, saved, reaction=reaction)
        except InexactResumeError as error:
            errors[name] = str(error)
        restore(controller, folders[-1])
    Path("faults.json").write_text(json.dumps(errors))
    return check(controller, saved, reaction=reaction)


detcore_keras.keras_controller.KerasController.restore = note_folder
trial_loop.check_restored = check_each
seed_everything()
model = functional()
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.02, use_ema=True), loss)
detcore_keras.fit(
    model, *records(), batch_size=8, epochs=6, verbose=0, callbacks=callbacks, save_every=24
)
