"""`ScottTrainer` on Lightning: options, budget, history, checkpoints, signals."""
