"""The query on the driver: start, settings, metadata, publishing, progress and state reader."""
