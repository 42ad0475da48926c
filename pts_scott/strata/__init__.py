"""Policies that stratify windows, and the partition they make."""
