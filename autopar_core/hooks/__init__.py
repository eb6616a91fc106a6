"""The contract between the core and plugins."""
