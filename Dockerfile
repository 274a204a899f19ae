# JupyterLab with the notebooks and their small checkpoints; nothing in it runs as root, or needs a network once built.
# `docker compose up` builds and starts it, and prints the address to open.
FROM python:3.11-slim-bookworm

RUN useradd --create-home --uid=1000 reader && install --directory --owner=1000 --group=1000 /home/reader/collection
USER 1000
WORKDIR /home/reader/collection
COPY --chown=1000:1000 . .
ENV PIP_NO_CACHE_DIR=1
RUN python -m utils.setup.env

EXPOSE 8888
# All addresses of the container: compose.yaml makes the port known to the host's 127.0.0.1 alone.
CMD [".venv/bin/python", "-m", "jupyter", "lab", "--no-browser", "--ServerApp.ip=0.0.0.0", "--ServerApp.port=8888", "--LabApp.default_url=/lab/tree/README.md"]
