"""The fluent API: streams, windows over them, triggers, and aggregates."""
