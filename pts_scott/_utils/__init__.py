"""Small tools without knowledge of the rest of the package."""
