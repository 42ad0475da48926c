"""How a step is executed: eager, compiled, or over several processes."""
