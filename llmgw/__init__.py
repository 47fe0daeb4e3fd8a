"""llmgw: one OpenAI-compatible endpoint over every machine that answers on SSH."""

__version__ = "0.1.0"
