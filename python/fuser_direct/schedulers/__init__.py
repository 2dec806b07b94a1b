"""Schedulers: each accepts a segment or says why not, and picks the loop nest that runs it."""
