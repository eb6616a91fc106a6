"""What a run does: generate, filter, estimate, find the exact set, rank, detail."""
