"""Named datasets, files, splits by time, and the paper's synthetic data."""

from pts_scott.datasets.catalogue import available, load

__all__ = ["available", "load"]
