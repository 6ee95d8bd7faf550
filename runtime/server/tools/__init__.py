"""Tool calls: how models write them, how they are read as they come, and how they are held to their schema."""
