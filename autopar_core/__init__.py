"""autopar: which parallel strategy should a dense LLM be trained with? Answered without a GPU."""

from __future__ import annotations


__version__ = "0.1.0"
