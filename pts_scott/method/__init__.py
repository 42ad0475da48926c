"""The paper and its family: samplers, methods, early stop, Algorithms 1 and 2, output."""
