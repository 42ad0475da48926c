"""The errors and warnings of this package: one base, one class for each kind of mistake.

Every message says what was given, what was expected and how to put it right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class ScottError(Exception):
    """Base of every error that ``pts_scott`` raises on purpose."""


class ScottWarning(UserWarning):
    """Category of every warning that ``pts_scott`` gives."""


class FaultWarning(ScottWarning):
    """A loss or gradient was not finite, and its step was skipped."""


class ArgumentError(ScottError, ValueError):
    """An argument has a value that it cannot have."""


class UnknownArgumentError(ScottError, TypeError):
    """An argument has a name that does not exist."""


class ConfigError(ScottError, ValueError):
    """A configuration has a key or a value that it cannot have."""


class MissingExtraError(ScottError, ImportError):
    """A feature needs a package that is not installed."""


class DataError(ScottError, ValueError):
    """The dataset cannot be used for training as it is."""


@contextmanager
def about_validation_data() -> Iterator[None]:
    """A block in which errors about data say that validation data are meant."""
    try:
        yield
    except DataError as error:
        raise type(error)(f"validation data: {error}") from error


class EmptyDatasetError(DataError):
    """There is no series, or no window, to train on."""


class ShortSeriesError(DataError):
    """A series is shorter than one window."""


class MissingValuesError(DataError):
    """A target is missing where the model has no mask for it."""


class InfiniteValuesError(DataError):
    """A target is infinite."""


class DatasetNotFoundError(DataError):
    """A dataset is neither known by name, nor in the folder, nor a file."""


class FileLayoutError(DataError):
    """A data file does not have the layout that it is read with."""


class ConstantSeriesError(DataError):
    """A series has one value only, so there is nothing to learn from it."""


class SplitError(DataError):
    """The series are too short to be split by time."""


class FrequencyError(DataError):
    """A frequency is unknown, or unfit for what is asked of it."""


class MixedFrequencyError(FrequencyError):
    """The series of one dataset have different frequencies."""


class StratificationError(ScottError, ValueError):
    """The windows cannot be stratified as asked."""


class EmptyStratumError(StratificationError):
    """A stratum that the policy announces gets no window."""


class TooManyStrataError(StratificationError):
    """The policy asks for more strata than there are windows."""


class NotFittedError(StratificationError):
    """A policy that learns from the windows is used before ``fit``."""


class ModelError(ScottError, ValueError):
    """The model breaks an assumption of the method."""


class BatchNormError(ModelError):
    """BatchNorm makes the loss of a window depend on its batch."""


class WindowLossError(ModelError):
    """The model does not give one loss for each window."""


class BatchCoupledLossError(ModelError):
    """The loss of a window changes with what shares its batch."""


class SelfCheckError(ModelError):
    """The engine does not compute what plain torch computes."""


class HiddenParameterError(SelfCheckError):
    """The network uses parameters that it has not registered."""


class UnrepeatableLossError(SelfCheckError):
    """A pass over the same windows gives other losses when it is repeated."""


class CompilationError(ScottError):
    """A run that was to be compiled was not."""


class DivergenceError(ScottError):
    """The parameters have become so large that the network fails."""


class ProcessError(ScottError):
    """Of several processes that train together, one is lost."""


class CheckpointError(ScottError):
    """A checkpoint cannot be written, or is not there."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint is not whole."""


class FolderInUseError(CheckpointError):
    """Another run writes its checkpoints to the same folder."""


class UnsafeCheckpointError(CheckpointError):
    """A checkpoint holds what could run code when it is read."""


class CheckpointVersionError(CheckpointError):
    """A checkpoint was written by another version."""


class CheckpointMismatchError(CheckpointError):
    """A checkpoint belongs to another run."""


class PredictorError(ScottError):
    """A predictor is not there, or cannot be made from its files here."""


class DamagedPredictorError(PredictorError):
    """A file of a predictor is not whole."""


class UnsafePredictorError(PredictorError):
    """A predictor names, or holds, what could run code when it is read."""


def quote(value: object, limit: int = 80) -> str:
    """A value as it is written, for a message; only the begin of a long one."""
    text = repr(value)
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text)} characters)"


def one_line(error: BaseException, limit: int = 300) -> str:
    """The message of somebody else's error, for a message of ours."""
    text = " ".join(str(error).split()).rstrip(".")
    return text if len(text) <= limit else f"{text[:limit]}…"


def cause(error: BaseException) -> str:
    """The class and the message of somebody else's error, for a message of ours."""
    text = one_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def shorten(items: Sequence[object], limit: int = 5) -> str:
    """The first few of a long list, for a message: ``'a', 'b', … (7 in all)``."""
    shown = ", ".join(map(quote, items[:limit]))
    return shown if len(items) <= limit else f"{shown}, … ({len(items)} in all)"
