"""The plan of a pipeline: its inputs, and the DataFrames of its query."""
