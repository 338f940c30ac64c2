"""A LoRA adapter for the model of `loadtest.tiny_model`, made like it: by numpy, from a seed."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from loadtest.tiny_model import Array, Shape, normal, projections, write_json


def build_lora(directory: Path, seed: int = 1, rank: int = 8, shape: Shape | None = None) -> Path:
    """Writes an adapter in peft's format for `build_model`'s Llama, strong enough to be seen."""
    shape = shape or Shape()
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "adapter_config.json", _adapter_config(rank))
    weights = dict(_adapter_weights(np.random.default_rng(seed), shape, rank))
    save_file(weights, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    return directory


_ADAPTED = ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj")


def _adapter_config(rank: int) -> dict[str, object]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": [name.rpartition(".")[2] for name in _ADAPTED],
    }


def _adapter_weights(
    dice: np.random.Generator, shape: Shape, rank: int
) -> Iterator[tuple[str, Array]]:
    sizes = projections(shape)
    for layer in range(shape.layers):
        for name in _ADAPTED:
            rows, columns = sizes[name]
            prefix = f"base_model.model.model.layers.{layer}.{name}"
            yield f"{prefix}.lora_A.weight", normal(dice, rank, columns, scale=0.1)
            yield f"{prefix}.lora_B.weight", normal(dice, rows, rank, scale=0.1)
