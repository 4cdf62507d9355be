"""What a run leaves: its folder, one row an instance, statistics over rows."""
