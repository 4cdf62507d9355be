"""Our memory behind clients that programs already have: OpenAI's, Claude's, LangGraph's, Mem0's."""
