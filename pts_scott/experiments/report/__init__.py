"""What is made of the results: tables, verdicts, figures and one page."""
