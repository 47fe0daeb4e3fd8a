"""One loop a concern. Each turn re-reads the whole truth; a hint wakes a loop early; losing one costs a period."""
