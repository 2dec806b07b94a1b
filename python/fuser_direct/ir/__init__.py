"""The intermediate representations: `fusion` (what the user defined) and `kernel` (one loop nest)."""
