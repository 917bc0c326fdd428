"""Explanations: why an operator has no output yet, as facts and as sentences."""
