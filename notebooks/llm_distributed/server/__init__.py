"""The same model on Ray: replicas that answer over HTTP, and batches of prompts offline."""

import utils.ray_cluster  # makes Ray's settings, before any module of this folder imports Ray
