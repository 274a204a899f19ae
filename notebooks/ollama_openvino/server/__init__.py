"""Serve packages of OpenVINO models to Ollama clients: `serve`, and `install` a model."""

from notebooks.ollama_openvino.server.process import Server, install, serve
