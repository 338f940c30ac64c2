# The commands of the project; `make` lists them. Variables: CONFIG (a profile), BUILD (cpu or gpu),
# ARGS (handed on to the service or to pytest), TORCH_INDEX_URL (deploy/venv.sh).
SHELL := /bin/bash
# The demo's limits are for the embedded model, not for one that is named.
CONFIG ?= $(if $(TIDEGATE_ENGINE__MODEL),,config/cpu-demo.yaml)
BUILD ?= $(shell nvidia-smi >/dev/null 2>&1 && echo gpu || echo cpu)
BUILD := $(BUILD)
PYTHON := .venv/bin/python
SOURCES := $(wildcard app deploy tests loadtest)
# The embedded model is prepared unless another is named.
EMBEDDED := $(if $(TIDEGATE_ENGINE__MODEL),,$(filter %cpu-demo.yaml,$(or $(CONFIG),cpu-demo.yaml)))

.DEFAULT_GOAL := help
.PHONY: help serve test check deploy-check bench bench-frontend e2e-monitoring format image e2e-image e2e-hpa lock clean venv venv-test model system system-test kubectl

help: ## list the commands
	@sed -nE 's/^([a-z0-9-]+):[^#]*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

serve: venv system model ## install, prepare the model, serve (CONFIG=config/….yaml for a profile)
	@exec $(PYTHON) -m app $(if $(CONFIG),--config '$(CONFIG)') $(ARGS)

test: venv-test system-test kubectl ## install what is missing and run the whole suite
ifdef ARGS
	@exec $(PYTHON) -m pytest $(ARGS)
else
	@$(PYTHON) -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m beside
	@$(PYTHON) -m pytest -m 'not beside'
endif

check: venv-test ## formatter, linter, types, architecture; starts no engine
	$(PYTHON) -m ruff format --check $(SOURCES)
	$(PYTHON) -m ruff check $(SOURCES)
	$(PYTHON) -m mypy --strict $(SOURCES)
	$(PYTHON) -m pytest -q tests/test_architecture.py

deploy-check: venv-test system-test kubectl ## the manifests: schemas, rules, every metric in a real scrape (a minute)
	@$(PYTHON) -m deploy.check $(ARGS)

LOADTEST := $(PYTHON) -m loadtest
bench: venv-test ## the benchmarks that need no GPU: tables here, JSON in loadtest/results (25 minutes)
	$(LOADTEST) search --ceiling --serve scripted --output-tokens 1 --duration 8 --warmup 2 --low 200 --high 8000 --tolerance 0.1 --name requests
	$(LOADTEST) search --ceiling --serve scripted --output-tokens 256 --duration 8 --warmup 2 --low 10 --high 500 --tolerance 0.1 --name tokens
	$(LOADTEST) batching
	$(LOADTEST) run --scenario loadtest/scenarios/overload.yaml --serve vllm
	$(LOADTEST) sweep --scenario loadtest/scenarios/goodput-fixed.yaml --serve vllm tidegate-slo --sweep 1x 2x 5x

bench-frontend: venv-test ## CPU per token, request and probe beside vLLM's front ends (20 minutes)
	@rust=$$(deploy/rust-frontend.sh) && export VLLM_RUST_FRONTEND_PATH="$$rust" && \
	  exec $(LOADTEST) frontend --serve vllm-wide $${rust:+vllm-rust-wide} tidegate-wide-each tidegate-wide $(ARGS)

e2e-monitoring: venv-test system-test ## a minute of load as Prometheus and the autoscalers see it (2 minutes)
	$(PYTHON) -m tests.e2e.monitoring

image: ## build the CPU image without a registry, as root on Debian (5 minutes at first, 10 GB)
	@deploy/image.sh

e2e-image: venv-test ## build the CPU image, run it without rights, stop it during a stream
	@exec $(PYTHON) -m tests.e2e.image

e2e-hpa: venv-test system-test kubectl ## the autoscaling chain with the real HPA controller (65 minutes; ARGS=slo for one run)
	@deploy/debian.sh etcd-server haproxy openssl
	@exec $(PYTHON) -m tests.e2e.hpa $(ARGS)

format: venv-test ## format the sources and mend what the linter can
	$(PYTHON) -m ruff format $(SOURCES)
	$(PYTHON) -m ruff check --fix $(SOURCES)

lock: ## resolve pyproject.toml into config/*.lock (ARGS=--upgrade moves versions)
	@deploy/lock.sh $(ARGS)

clean: ## remove the environment, caches and results; the prepared model stays
	rm -rf .venv .venv.lock *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis loadtest/results

venv:
	@deploy/venv.sh $(BUILD)

venv-test: venv
	@deploy/venv.sh $(BUILD) test

system:
	@deploy/debian.sh $(if $(filter cpu,$(BUILD)),libnuma1)

system-test: system
	@deploy/debian.sh prometheus

kubectl: venv-test
	@deploy/kubectl.sh >/dev/null

model: venv
	@$(if $(EMBEDDED),$(PYTHON) -m app.embedded >/dev/null)
