"""Windows at run time: assigners, calendar bounds, session merging and evictors."""
