"""The LLM as an author: its conversations, the tools it calls, what it is told, and the strategies."""
