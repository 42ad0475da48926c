"""Other tools that train with this package; each module needs its tool installed."""
