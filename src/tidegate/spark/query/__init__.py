"""The query on the driver: start, metadata, publishing, progress, metrics and the state reader."""
