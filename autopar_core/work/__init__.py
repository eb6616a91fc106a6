"""The unsharded work of one micro-batch, and what shards make of it on one rank."""
