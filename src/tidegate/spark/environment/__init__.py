"""The environment of a query: Spark session, Java and connector jars."""
