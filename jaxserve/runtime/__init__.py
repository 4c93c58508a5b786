"""Set-up of processes: JAX, devices, child processes, HTTP servers, storage."""
