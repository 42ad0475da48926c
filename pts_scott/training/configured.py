"""An object that is defined by the arguments it was made with."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import torch

from pts_scott.training.optimizers import serialisable


class Configured:
    """Base of `ScottTrainer`: what is printed, serialised and copied are arguments."""

    given_arguments: dict[str, Any]

    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments that GluonTS serialises; results are not kept."""
        given = dict(self.given_arguments)
        if "optimizer" in given:
            given["optimizer"] = serialisable(given["optimizer"])
        if isinstance(given.get("device"), torch.device):  # GluonTS cannot serialise it
            given["device"] = str(given["device"])
        if isinstance(given.get("objective"), timedelta | np.timedelta64):
            given["objective"] = str(pd.Timedelta(given["objective"]))
        return (), given

    def __getstate__(self) -> dict[str, Any]:
        """Return what can be copied and pickled: not Lightning's part of the last run."""
        return {**self.__dict__, "lightning": None, "strata": None}

    def __repr__(self) -> str:
        given = self.given_arguments.items()
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in given)})"
