"""Stratification policies for windows, and the partition they define."""
