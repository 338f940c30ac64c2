"""Write a GGUF file out as a directory that vLLM can load.

`python -m app.embedded_convert SRC DST`: a module of its own, run as a child process, because torch
and transformers cost seconds and a gigabyte to import and are needed only the first time.
"""

import sys
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging


def say(line: str) -> None:
    """One line of progress on stderr."""
    print(f"  {line}", file=sys.stderr, flush=True)


def write_weights(source: Path, target: Path) -> int:
    """Unpack the weights into bfloat16 safetensors; returns the context length in tokens."""
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
        local_files_only=True,
    )
    model.save_pretrained(target)
    return int(model.config.max_position_embeddings)


def write_tokenizer(source: Path, target: Path, context: int) -> None:
    """Write tokenizer and chat template."""
    tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(
        source.parent, gguf_file=source.name, local_files_only=True
    )
    tokenizer.model_max_length = context
    # The file says `tokenizer.ggml.pre = smollm`: digits are split off one by one before the
    # byte-level split. transformers reads the vocabulary but not this key.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.save_pretrained(target)


def main(source: Path, target: Path) -> None:
    """Convert `source` into the existing directory `target`."""
    logging.disable_progress_bar()
    say("unpacking the weights")
    context = write_weights(source, target)
    say("writing the tokenizer")
    write_tokenizer(source, target, context)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
