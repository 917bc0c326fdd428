"""Properties of single events: readable time, lateness class, duplicate, partition."""
