"""History: one row per outer loop, with the documented columns."""

from __future__ import annotations

import math

from helpers.runs import fit_tiny_network
from helpers.training import quiet_trainer

from pts_scott import Stratifier
from pts_scott.training.history import History

COLUMNS = [
    "step",
    "outer",
    "epoch",
    "gradients",
    "anchors",
    "seconds",
    "train_loss",
    "val_loss",
    "update_norm",
    "skipped",
    "probe_gradients",
    "probe_seconds",
    "sampler",
    "compile_seconds",
]


def test_history_has_the_documented_columns():
    trainer = quiet_trainer(stratifier=Stratifier.series())
    assert trainer.history.columns.tolist() == COLUMNS
    assert trainer.history.empty
    fit_tiny_network(trainer, validate=True)
    history = trainer.history
    assert history.columns.tolist() == COLUMNS
    for column in ("step", "outer", "gradients", "seconds"):
        assert history[column].is_monotonic_increasing
    assert history["train_loss"].notna().all()
    assert history["val_loss"].notna().sum() == 1
    assert (history["update_norm"] > 0).all()
    assert set(history["sampler"]) == {"uniform"}
    assert (history[["probe_gradients", "probe_seconds"]] == 0).all(axis=None)


def test_anchor_without_a_step_updates_the_last_row():
    # 3 strata x 16 windows and steps of 2 x 32: the second anchor uses up the budget.
    trainer = quiet_trainer(gamma=None, inner_steps=1, epochs=None, gradient_budget=112)
    fit_tiny_network(trainer)
    assert trainer.history["train_loss"].notna().all()
    history = History()
    history.extend(gradients=5)
    history.add(step=1, outer=1, epoch=0, anchors=1, gradients=10, train_loss=0.5)
    history.extend(gradients=15)
    assert history.frame()["gradients"].tolist() == [15]


def test_missing_counts_are_zero_and_missing_numbers_nan():
    history = History()
    history.add(step=7)
    row = history.frame().iloc[0]
    assert (row["step"], row["skipped"], row["sampler"]) == (7, 0, "")
    assert math.isnan(row["val_loss"])


def test_state_dict_round_trip_preserves_rows_and_types():
    history = History()
    history.compile_seconds = 2.5
    for step in (7, 14):
        history.add(
            step=step,
            gradients=10 * step,
            seconds=0.1 * step,
            train_loss=1.5,
            sampler=history.sampler(f"from step {step}"),
        )
    restored = History()
    restored.load_state_dict(history.state_dict())
    assert restored.frame().equals(history.frame())
    restored.add(step=21, sampler=restored.sampler("from step 7"))
    assert restored.frame()["step"].tolist() == [7, 14, 21]
    names = ["from step 7", "from step 14", "from step 7"]
    assert restored.frame()["sampler"].tolist() == names
    assert len(history) == 2, "the restored history has its own columns"
