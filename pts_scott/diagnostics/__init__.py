"""Variance of gradients and of their estimators."""
