"""Conversations of people with each other and with assistants, as a memory reads them."""
