"""Experiments: configs, runs, benchmarks, tuning and their reports."""
