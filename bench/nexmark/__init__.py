"""Nexmark: the windowed queries q5, q7, q8, q11 and q12 on Spark, against Flink SQL."""
