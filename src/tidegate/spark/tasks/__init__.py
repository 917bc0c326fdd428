"""Code that runs inside Spark tasks: edge, stateful operator, transport and state."""
