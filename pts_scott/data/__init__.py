"""From a dataset to batches of tensors: validation, time, series, windows."""
