# make serve   install into .venv and start the server on the embedded model
# make test    install into .venv and run every check: format, lint, types, tests
#
# PYTHON picks the interpreter (3.11 or later); ARGS is handed to `ratoon serve`;
# CMAKE_ARGS is handed to llama.cpp's build, e.g. CMAKE_ARGS=-DGGML_CUDA=on

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: serve test clean

serve: $(STAMP)
	@$(BIN)/ratoon serve $(ARGS)

test: $(STAMP)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/pytest -n 2 --dist loadfile

$(STAMP): pyproject.toml requirements.lock scripts/install scripts/llama.cmake
	@PYTHON="$(PYTHON)" CMAKE_ARGS="$(CMAKE_ARGS)" scripts/install .venv
	@touch $(STAMP)

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
