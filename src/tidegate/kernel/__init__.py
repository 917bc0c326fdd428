"""The kernel decides what windows, watermarks, triggers, accumulations and panes mean, on whole
columns and without any I/O of its own.
"""
