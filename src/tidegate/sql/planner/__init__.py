"""The planner: from the syntax tree of a query to pipelines of the API."""
