"""Variance of per-window gradients and of the gradient estimators."""
