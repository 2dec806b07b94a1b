"""The intermediate representations: `fusion` (what users define), `kernel` (a loop nest)."""
