"""The windowed aggregate: cells and slices, triggers, panes, retention and snapshots."""
