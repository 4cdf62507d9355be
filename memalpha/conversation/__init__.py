"""What people said to each other and to assistants, as a memory reads it."""
