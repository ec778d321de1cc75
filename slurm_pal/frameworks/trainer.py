# SPDX-License-Identifier: MIT
"""A callback of the Hugging Face Trainer that saves when the mover asks: `Trainer(..., callbacks=[TrainerSaver()])`."""

from __future__ import annotations

from collections.abc import Iterable

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from slurm_pal.frameworks.saver import SIGNALS, Saver


class TrainerSaver(TrainerCallback):
    """Has the Trainer write one of its own checkpoints, whatever its save_strategy is."""

    def __init__(self, *, signals: Iterable[str] = SIGNALS, every_steps: int = 1) -> None:
        self._saver = Saver(signals=signals, every_steps=every_steps)
        self._asked = False

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> TrainerControl:
        if self._saver.due(state.global_step, state.max_steps):
            self._asked = control.should_save = True
        return control

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> TrainerControl:
        if self._asked:
            self._asked = False
            self._saver.done()
        return control
