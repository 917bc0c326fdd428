"""State stores: named Arrow tables and JSON documents that survive a restart."""
