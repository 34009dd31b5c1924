# `make demo` and `make test` need nothing but Python and make: what they run in, they first install into .venv.

PYTHON ?= python3
VENV := .venv
LOWEST := .venv-lowest
WHEEL := .venv-wheel
# Two processes, because compiling, which is most of the work, keeps one core busy. Each takes half of the tests, in their
# order, because those of one file share programs; who is done first takes over from the other. For something else this
# time: `make test PYTEST_FLAGS='-x -k gram'`.
PYTEST_FLAGS ?= -n 2 --dist worksteal
PIP_INSTALL := -m pip install --disable-pip-version-check -qq
# neural-tangents, the oracle of the tests and the peer of the benchmarks, without the TensorFlow it asks for.
ORACLE := --no-deps neural-tangents==0.6.5 'frozendict>=2.4'

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# All targets install into one environment, which two of them must not do at a time.
.NOTPARALLEL:
.PHONY: help demo paper test test-lowest coverage lint format types docs docs-serve pictures bench bench-scale dist clean

help:  ## say what there is to make
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' Makefile | while IFS='|' read -r name text; do \
		printf '%-18s %s\n' "$$name" "$$text"; done

demo: $(VENV)/.demo  ## the Ising model: theory against trained ensembles, as a table and figures in results/
	$(VENV)/bin/python examples/ising.py

paper: $(VENV)/.test  ## all experiments at the size of a laptop, about two hours; the same command goes on after an interruption
	$(VENV)/bin/python examples/_paper.py $(PAPER_FLAGS)

test: $(VENV)/.test  ## run all tests and the examples in the documentation
	$(VENV)/bin/python -m pytest $(PYTEST_FLAGS)

test-lowest: $(LOWEST)/.test  ## the same with the oldest supported versions of everything, and compiled as users do
	XLA_FLAGS=--xla_backend_optimization_level=3 $(LOWEST)/bin/python -m pytest $(PYTEST_FLAGS)

coverage: $(VENV)/.dev  ## run the tests and show which lines they miss
	$(VENV)/bin/python -m pytest --cov $(PYTEST_FLAGS)

lint: $(VENV)/.dev  ## check style, docstrings and formatting
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check

format: $(VENV)/.dev  ## put the code into the style that lint wants
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

types: $(VENV)/.dev  ## check the types
	$(VENV)/bin/mypy

docs: $(VENV)/.docs  ## build the documentation into site/
	$(VENV)/bin/python docs/tools/tutorials.py
	$(VENV)/bin/python -m zensical build --clean --strict -f mkdocs.yml
	$(VENV)/bin/python docs/tools/links.py site

docs-serve: $(VENV)/.docs  ## show the documentation in a browser while it is written
	$(VENV)/bin/python docs/tools/tutorials.py
	$(VENV)/bin/python -m zensical serve -f mkdocs.yml

pictures: $(VENV)/.demo  ## draw the pictures of the concept pages again
	$(VENV)/bin/python docs/tools/pictures.py

bench: $(VENV)/.test  ## run every benchmark, and put the results into benchmarks/results.json and docs/performance.md
	$(VENV)/bin/python benchmarks/run.py $(BENCH_FLAGS); status=$$?; \
	$(VENV)/bin/python benchmarks/performance_page.py && exit $$status

bench-scale: $(VENV)/.demo  ## the benchmarks of large problems, about two hours, into benchmarks/scale and docs/scaling.md
	$(VENV)/bin/python benchmarks/run.py --folder benchmarks/scale --results benchmarks/scale/results.json $(BENCH_FLAGS); \
	status=$$?; $(VENV)/bin/python benchmarks/performance_page.py scale && exit $$status

dist: $(VENV)/.dev  ## build wheel and sdist, check what they contain, and try the wheel in an environment of its own
	rm -rf dist $(WHEEL)
	$(VENV)/bin/python -m build --outdir dist . > /dev/null
	$(VENV)/bin/python .ci/distribution.py dist
	$(PYTHON) -m venv $(WHEEL)
	$(WHEEL)/bin/python $(PIP_INSTALL) dist/*.whl
	cd dist && ../$(WHEEL)/bin/ntk-equiv info && ../$(WHEEL)/bin/python -c 'import ntk_equiv.ensembles, ntk_equiv.infinite'

clean:  ## remove everything that was made
	rm -rf .venv* .cache .jax_cache site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
	find . -name __pycache__ -prune -exec rm -rf {} +

# Each stamp stands for an installed set of packages; it is made anew when the project's own file changes.

%/.created:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("ntk-equiv needs Python 3.11 or later, and \
	$(PYTHON) is %d.%d. Name another: make PYTHON=python3.12" % sys.version_info[:2])'
	$(PYTHON) -m venv $*
	@touch $@

$(VENV)/.demo: pyproject.toml | $(VENV)/.created
	$(VENV)/bin/python $(PIP_INSTALL) -e '.[plots]'
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/.created
	$(VENV)/bin/python $(PIP_INSTALL) -e '.[test]'
	$(VENV)/bin/python $(PIP_INSTALL) $(ORACLE)
	@touch $@

$(VENV)/.dev: $(VENV)/.test
	$(VENV)/bin/python $(PIP_INSTALL) -e '.[dev]'
	@touch $@

$(VENV)/.docs: pyproject.toml | $(VENV)/.created
	$(VENV)/bin/python $(PIP_INSTALL) -e '.[docs]'
	@touch $@

$(LOWEST)/.test: pyproject.toml constraints-lowest.txt | $(LOWEST)/.created
	$(LOWEST)/bin/python $(PIP_INSTALL) -c constraints-lowest.txt -e '.[test]'
	$(LOWEST)/bin/python $(PIP_INSTALL) $(ORACLE)
	@touch $@
