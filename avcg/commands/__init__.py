"""What people type: one module for each command, light to import, and what the longer ones do behind it."""
