"""The Spark runtime: the operators inside one Structured Streaming query."""
