"""autopar: which parallel strategy should a dense LLM be trained with? Answered without a GPU."""

__version__ = "0.1.0"
