"""Arrays under XLA: batch layout, shared rows, random numbers. Nothing here knows of servers."""
