"""The runtime on Apache Spark: the operators of the kernel inside one Structured Streaming
query.
"""
