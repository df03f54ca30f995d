"""The parameter server: its rules (pure), its state (in memory that outlives it), its process, and the worker's end."""
