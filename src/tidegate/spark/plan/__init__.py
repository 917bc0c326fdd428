"""The plan of a pipeline: inputs, shards, reshuffles and the DataFrames of one query."""
