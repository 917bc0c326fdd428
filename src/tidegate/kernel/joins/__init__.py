"""Joins as column functions: rows of two sides sorted by key and position, ranges between them, and
the pairs that these give.
"""
