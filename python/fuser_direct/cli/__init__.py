"""The command line: `python -m fuser_direct info` and `python -m fuser_direct demo`."""
