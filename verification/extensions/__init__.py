"""An extension can be deleted: its folder, its entry points and its tests, and no other line."""
