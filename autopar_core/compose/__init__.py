"""Sums of terms and the maxima that only the core takes: over instants, stages, ranks and windows."""
