"""What was used: counted in memory by the gateway, flushed to the store once a second."""

from __future__ import annotations

from llmgw.model.base import Record


class UsageRow(Record):
    """What one key used of one model since the rows were last taken."""

    key: str
    """Name of the API key; empty where the endpoint is open and none was given."""
    model: str
    requests: int = 0
    """Every request that reached the model's route, however it ended."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    """As the engine counted them; the number of streamed chunks where it did not say."""
    cancelled: int = 0
    """Requests whose client left before the answer was complete."""
    failed: int = 0
    """Requests that ended with a 5xx or broke off."""
