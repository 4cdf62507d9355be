"""Use of a trained agent: Python API (threads and asyncio), loading, export, HTTP and MCP
server.
"""
