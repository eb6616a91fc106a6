"""Values: immutable attrs classes and arrays, without I/O and without plugins."""
