"""Kafka topics as a direct source."""
