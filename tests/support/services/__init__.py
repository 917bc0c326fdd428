"""Real servers for the tests, each private, on loopback, in temporary folders: PostgreSQL, Kafka, a
Spark cluster, Spark Connect.
"""
