"""Inspection of operators: their windows, messages, current values and counts."""
