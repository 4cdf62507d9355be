"""The agent in use as a server: one process that speaks MCP and a small HTTP API over one ``AsyncMemoryAgent`` and its store.

``operations`` holds what can be asked, once; ``http_api`` and ``mcp_tools`` are two ways to ask it; ``gate`` stands in front of
both (where from, who, how much); ``server`` puts them together and runs them. Guide: ``docs/serve.md``.
"""
