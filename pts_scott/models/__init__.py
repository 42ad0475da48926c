"""Estimators, networks, and predictors."""
