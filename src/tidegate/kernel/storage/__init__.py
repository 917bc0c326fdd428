"""Storage of state tables: sorted runs, the message store and the compact encoding of columns."""
