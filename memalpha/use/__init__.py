"""The trained agent as something to use, from Python: ``agent`` (threads), ``aio`` (asyncio), ``trained`` (loading)."""
