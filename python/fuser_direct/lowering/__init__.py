"""Lowering: from a segment of a fusion to a kernel over canonical axes."""
