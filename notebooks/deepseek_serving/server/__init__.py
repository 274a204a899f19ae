"""Serve a model repository by OpenVINO Model Server or by a local server: `serve`."""

from notebooks.deepseek_serving.server.process import KINDS, Server, ServerFailed, serve
