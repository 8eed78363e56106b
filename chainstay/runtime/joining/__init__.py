"""Models whose branches meet, trained by schedules of joins."""
