"""Estimators, networks, `with_scott`, and reading of predictors."""
