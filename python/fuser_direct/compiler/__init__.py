"""The compiler: from a fusion and a description of its inputs to a program to run."""
