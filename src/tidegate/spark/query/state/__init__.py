"""The state of a query, read from its checkpoint without Spark."""
