"""What a process sets up first: cores, XLA flags, compiled programs on disk, devices, processes."""
