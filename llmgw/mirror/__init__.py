"""The mirror: weights and engine archives, fetched once by the control plane, pushed once to each node over SSH."""
