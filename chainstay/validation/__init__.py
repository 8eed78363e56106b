"""The referee: what schedules mean, and optima found without any solver's theory."""
