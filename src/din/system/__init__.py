"""Effects: clock, files, processes, sensors, shared memory."""
