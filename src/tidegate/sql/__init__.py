"""SQL over streams: a dialect with windows and `EMIT`, a planner to the API, and a printer."""
