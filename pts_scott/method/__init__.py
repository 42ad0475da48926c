"""The paper and its family: samplers, directions, early stop, Algorithms 1 and 2."""
