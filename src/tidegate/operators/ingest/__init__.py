"""Ingest: from a delivered table to deduplicated, classified rows and an observed watermark."""
