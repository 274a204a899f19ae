# Each target prepares what it needs; `make` alone lists them. The same in plain commands is in README.md.
PYTHON ?= python3
LAB_ARGS ?=
ARGS ?=

ifeq ($(OS),Windows_NT)
VENV_PYTHON := .venv/Scripts/python.exe
else
VENV_PYTHON := .venv/bin/python
# JupyterLab refuses to run as root (in a container, mostly) without this option.
ifeq ($(shell id -u),0)
LAB_ARGS += --allow-root
endif
endif

CASES := $(notdir $(patsubst %/,%,$(dir $(wildcard notebooks/*/*.ipynb))))
which_case = echo "Which case? Add CASE=name; there is: $(CASES)." && exit 2
# The cases that have the module or folder $(1): all, or only the one that CASE names, which may have no notebook yet.
having = $(filter $(or $(CASE),$(CASES)),$(patsubst notebooks/%/$(1).py,%,$(wildcard notebooks/*/$(1).py)) \
  $(patsubst notebooks/%/$(1)/__main__.py,%,$(wildcard notebooks/*/$(1)/__main__.py)))

.PHONY: help env lab test mutations run demo bench arm train new site bundle lock matrix wheels

help:
	@echo "make env                 prepare .venv, checkpoints and a browser; the others do it first"
	@echo "make lab                 open JupyterLab on the catalogue"
	@echo "make test                every test and every notebook, with the network cut"
	@echo "make mutations [CASE=]   break the code on purpose and see tests fail"
	@echo "make run CASE=name       run one notebook headless; the exit status says whether it passes"
	@echo "make demo CASE=name      open one Gradio demo on this machine"
	@echo "make bench [CASE=name]   measure, at the released size too, into results/bench"
	@echo "make arm                 run the converted models on an emulated ARM processor, into results/bench/emulated-arm.json"
	@echo "make train CASE=name     train the tiny checkpoint again"
	@echo "make new CASE= TITLE=    lay out a new notebook with its tests"
	@echo "make site                build a website with search from the notebooks, into dist/site"
	@echo "make bundle [SYSTEM=]    one archive, from which all this works without a network: linux, linux-arm, macos, windows"
	@echo "make lock                resolve requirements.txt into requirements.lock, the site's too (needs uv)"
	@echo "make matrix              the fast tests and one notebook with each Python that is installed, 3.11 to 3.13"
	@echo "make wheels              ask the index for a wheel of every pin, for each system and Python"

env:
	@$(PYTHON) -m utils.setup.env

lab: env
	@$(VENV_PYTHON) -m jupyter lab --ServerApp.ip=127.0.0.1 --LabApp.default_url=/lab/tree/README.md $(LAB_ARGS)

test: env
	@$(VENV_PYTHON) -m utils.setup.offline $(VENV_PYTHON) -m pytest -n 2 --dist loadfile --no-loadscope-reorder \
	  --durations=20 --durations-min=1 $(ARGS)

# CASE: a notebook, utils, or changed (what differs from main; on main, what the last day changed).
mutations: env
	@$(VENV_PYTHON) -m utils.setup.offline $(VENV_PYTHON) -m pytest -n 2 --dist loadgroup \
	  tests/mutations --mutations=$(or $(CASE),all) $(ARGS)

run: env
	@$(if $(CASE),$(VENV_PYTHON) -m utils.run $(CASE) $(ARGS),$(which_case))

demo: env
	@$(if $(CASE),$(VENV_PYTHON) -m utils.demo $(CASE) $(ARGS),$(which_case))

bench: env
	@$(or $(foreach case,$(call having,measuring),$(VENV_PYTHON) -m notebooks.$(case).measuring &&),\
	  echo "There is no notebooks/$(or $(CASE),*)/measuring: nothing to measure." && exit 2 &&) true

arm: env
	@$(VENV_PYTHON) -m utils.arm $(ARGS)

train: env
	@$(if $(CASE),$(or $(foreach case,$(call having,training),$(VENV_PYTHON) -m notebooks.$(case).training),\
	  $(if $(filter $(CASE),$(CASES)),echo "$(CASE) trains nothing: its README says where its checkpoint comes from.",\
	  $(which_case))),$(which_case))

new: env
	@$(VENV_PYTHON) -m utils.new "$$CASE" "$$TITLE"

site: env
	@$(VENV_PYTHON) -m utils.website $(ARGS)

bundle: env
	@$(VENV_PYTHON) -m utils.setup.bundle $(if $(SYSTEM),--system $(SYSTEM)) $(ARGS)

lock: env
	@$(VENV_PYTHON) -m utils.setup.lock

matrix: env
	@$(VENV_PYTHON) -m utils.setup.matrix $(ARGS)

wheels: env
	@$(VENV_PYTHON) -m utils.setup.wheels $(ARGS)
