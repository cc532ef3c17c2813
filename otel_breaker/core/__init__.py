"""The pure circuit: states, policy and ``step``. Standard library only, no I/O, no lock; a test enforces it."""
