"""The history of one key and window: its panes, what caused each of them, and what is open."""
