"""Small utilities that do not depend on the rest of the package."""
