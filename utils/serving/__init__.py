"""What the servers of several notebooks share: continuous batching, the checks before the endpoints, the process."""
