"""The report of a benchmark: tables, verdicts, figures and one HTML page."""
