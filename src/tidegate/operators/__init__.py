"""Operators: plain objects that turn deliveries, watermarks and the clock into panes and late rows,
whatever runtime drives them.
"""
