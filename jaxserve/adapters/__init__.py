"""The environment behind other libraries' interfaces."""
