"""The service over HTTP: `create_app`, and its process. `ingesting` fills its database with several workers."""

import utils.ray_cluster  # makes Ray's settings, before `ingesting` imports Ray
from notebooks.rag_serving.server.api import create_app
from notebooks.rag_serving.server.process import database_folder, retriever_of, serve
