"""The errors and warnings of this package: one base class, one class per kind of mistake.

Every message says what was given, what was expected and how to fix it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class ScottError(Exception):
    """Base class of every error that ``pts_scott`` raises on purpose."""


class ScottWarning(UserWarning):
    """Category of every warning that ``pts_scott`` issues."""


class FaultWarning(ScottWarning):
    """A loss or gradient was non-finite, and its step was skipped."""


class ArgumentError(ScottError, ValueError):
    """An argument has an invalid value."""


class UnknownArgumentError(ScottError, TypeError):
    """An argument name does not exist."""


class ConfigError(ScottError, ValueError):
    """A configuration has an unknown key or an invalid value."""


class MissingExtraError(ScottError, ImportError):
    """A feature needs a package that is not installed."""


class DataError(ScottError, ValueError):
    """The dataset cannot be used for training as it is."""


@contextmanager
def about_validation_data() -> Iterator[None]:
    """Prefix errors about data with the words "validation data"."""
    try:
        yield
    except DataError as error:
        raise type(error)(f"validation data: {error}") from error


class EmptyDatasetError(DataError):
    """There is no series, or no window, to train on."""


class ShortSeriesError(DataError):
    """A series is shorter than one window."""


class MissingValuesError(DataError):
    """A target is missing where the model cannot mask it."""


class InfiniteValuesError(DataError):
    """A target is infinite."""


class DatasetNotFoundError(DataError):
    """A dataset is neither a known name, nor in the data folder, nor a file."""


class FileLayoutError(DataError):
    """A data file does not have the expected layout."""


class ConstantSeriesError(DataError):
    """A series is constant, so there is nothing to learn from it."""


class SplitError(DataError):
    """The series are too short to be split by time."""


class FrequencyError(DataError):
    """A frequency is unknown, or unsuitable for the requested operation."""


class MixedFrequencyError(FrequencyError):
    """The series of one dataset have different frequencies."""


class StratificationError(ScottError, ValueError):
    """The windows cannot be stratified as requested."""


class EmptyStratumError(StratificationError):
    """A stratum that the policy declares contains no window."""


class TooManyStrataError(StratificationError):
    """The policy asks for more strata than there are windows."""


class NotFittedError(StratificationError):
    """A policy that learns from the windows is used before ``fit``."""


class ModelError(ScottError, ValueError):
    """The model violates an assumption of the method."""


class BatchNormError(ModelError):
    """BatchNorm makes the loss of a window depend on its batch."""


class WindowLossError(ModelError):
    """The model does not return one loss per window."""


class BatchCoupledLossError(ModelError):
    """The loss of a window depends on the other windows of its batch."""


class SelfCheckError(ModelError):
    """The engine does not compute what plain torch computes."""


class HiddenParameterError(SelfCheckError):
    """The network uses parameters that it has not registered."""


class UnrepeatableLossError(SelfCheckError):
    """A repeated pass over the same windows returns different losses."""


class CompilationError(ScottError):
    """A run that required compilation was not compiled."""


class DivergenceError(ScottError):
    """The parameters have become so large that the network fails."""


class ProcessError(ScottError):
    """One of several processes that train together was lost."""


class CheckpointError(ScottError):
    """A checkpoint cannot be written, or does not exist."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint is incomplete or corrupt."""


class FolderInUseError(CheckpointError):
    """Another run writes its checkpoints to the same folder."""


class UnsafeCheckpointError(CheckpointError):
    """A checkpoint contains objects that could run code when loaded."""


class CheckpointVersionError(CheckpointError):
    """A checkpoint was written by another version."""


class CheckpointMismatchError(CheckpointError):
    """A checkpoint belongs to another run."""


class PredictorError(ScottError):
    """A predictor does not exist, or cannot be created from its files here."""


class DamagedPredictorError(PredictorError):
    """A file of a predictor is incomplete or corrupt."""


class UnsafePredictorError(PredictorError):
    """A predictor names or contains objects that could run code when loaded."""
