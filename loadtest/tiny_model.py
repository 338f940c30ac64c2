"""A tiny model for the real engine: a random Llama with its own tokenizer.

Everything is written by numpy and `tokenizers`, without torch, in about a second; the same seed
gives the same bytes. The text that the model writes is noise, but it depends on the whole
context, is the same for the same prompt at temperature 0, and practically never ends by itself:
the rows of the added tokens in `lm_head` are zero.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

Array: TypeAlias = npt.NDArray[np.float32]

SPECIAL_TOKENS = ("<|endoftext|>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
"""Skipped when decoding: padding, bos, eos and ChatML's two."""
MARKUP_TOKENS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
"""One token each but part of the text, as in the models that vLLM's parsers were made for."""
ADDED_TOKENS = len(SPECIAL_TOKENS) + len(MARKUP_TOKENS)
PAD, BOS, EOS, IM_START, IM_END = range(len(SPECIAL_TOKENS))


@dataclass(frozen=True)
class Shape:
    """Sizes of the model; heads and sizes as vLLM's CPU attention wants them (64 a head)."""

    layers: int = 2
    hidden: int = 256
    intermediate: int = 512
    heads: int = 4
    kv_heads: int = 2
    positions: int = 32768

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads


CHAT_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- 'Tools:\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '\\n</tools>\\nCall one as <tool_call>{"name": name, "arguments": object}</tool_call>' }}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + (message.content or '') }}
        {{- '\\n</tool_response><|im_end|>\\n' }}
    {%- elif not (tools and loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

CORPUS = """\
A tide gate is a door in a sea wall. It lets the river out when the water of the sea is low, and
closes by itself when the flood comes, so that the fields behind the wall stay dry. Nobody has to
watch it: the weight of the water decides. People who live by the coast have built such gates for
a thousand years, first from oak and iron, later from stone, concrete and steel.
What is the capital of France? The capital of France is Paris. What is the largest planet? It is
Jupiter. How many days are there in a year? Three hundred and sixty-five, and one more in a leap
year. Once upon a time there was a little girl who lived with her mother near a deep forest.
You are a helpful assistant. Please answer the following question in one short sentence. Write a
story about a dog, a cat and an old bicycle. Explain why the sky is blue. Say hello to the world!
The engine keeps a batch of running requests. At every step it picks what to compute next: a part
of a prompt, or one token for each sequence. When memory is short, the last request is preempted
and has to wait until blocks are free again. Throughput grows with the size of the batch, and so
does the time between two tokens. A queue that has no bound only hides the overload from clients.
def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)
for index, value in enumerate(values):
    print(f"{index}: {value}")
{"name": "get_weather", "arguments": {"city": "Berlin", "unit": "celsius"}}
{"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"], "ok": true}
0 1 2 3 4 5 6 7 8 9 10 11 12 13 20 42 64 100 128 256 512 1000 1024 2048 3.14159 1969-07-20 12:30
Die Flut hebt alle Boote. Übermut tut selten gut, größer ist nicht immer schöner.
Où est la bibliothèque ? Les élèves déjeunent à midi, près de la fenêtre.
¿Dónde está la estación? Mañana será otro día. Coração, não, ações, irmão.
Привет, мир! Как дела? Сегодня хорошая погода, спасибо. Γειά σου Κόσμε, καλημέρα.
你好,世界。今天的天气很好。我们去海边散步吧。 こんにちは、世界。ありがとう。 안녕하세요 세계.
مرحبا بالعالم. שלום עולם. नमस्ते दुनिया। สวัสดีชาวโลก
😀 😀😀 🚀 👍 👍🏽 ❤️ 🎉 👩‍💻 🇩🇪 ✓ → € “quoted” – dash … end.
"""


def build_model(directory: Path, seed: int = 0, shape: Shape | None = None) -> Path:
    """Writes a Llama for causal language modelling, as Hugging Face would save it."""
    shape = shape or Shape()
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    vocabulary = tokenizer.get_vocab_size()
    write_json(directory / "tokenizer_config.json", _tokenizer_config(shape))
    write_json(directory / "config.json", _model_config(shape, vocabulary))
    write_json(directory / "generation_config.json", _generation_config())
    weights = dict(_weights(np.random.default_rng(seed), shape, vocabulary))
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def train_tokenizer() -> Tokenizer:
    """A byte-level BPE: any text survives encoding and decoding, and nothing is added to it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1536,
        min_frequency=1,
        special_tokens=[*SPECIAL_TOKENS, *MARKUP_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS.splitlines(keepends=True), trainer)
    tokenizer.add_tokens([AddedToken(token, special=False) for token in MARKUP_TOKENS])
    return tokenizer


def _model_config(shape: Shape, vocabulary: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "max_position_embeddings": shape.positions,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "use_cache": True,
    }


def _generation_config() -> dict[str, object]:
    return {"bos_token_id": BOS, "eos_token_id": [EOS, IM_END], "pad_token_id": PAD}


def _tokenizer_config(shape: Shape) -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[BOS],
        "eos_token": SPECIAL_TOKENS[EOS],
        "pad_token": SPECIAL_TOKENS[PAD],
        "extra_special_tokens": [SPECIAL_TOKENS[IM_START], SPECIAL_TOKENS[IM_END]],
        "clean_up_tokenization_spaces": False,
        "model_max_length": shape.positions,
        "chat_template": CHAT_TEMPLATE,
    }


def _weights(
    dice: np.random.Generator, shape: Shape, vocabulary: int
) -> Iterator[tuple[str, Array]]:
    """Attention outweighs the embedding: the text follows the context, not a short cycle."""
    yield "model.embed_tokens.weight", normal(dice, vocabulary, shape.hidden, scale=0.5)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        for name, (rows, columns) in projections(shape).items():
            gain = 4.0 if name == "self_attn.o_proj" else 1.5
            scale = gain / np.sqrt(columns)
            yield f"{prefix}.{name}.weight", normal(dice, rows, columns, scale=scale)
        yield f"{prefix}.input_layernorm.weight", np.ones(shape.hidden, np.float32)
        yield f"{prefix}.post_attention_layernorm.weight", np.ones(shape.hidden, np.float32)
    yield "model.norm.weight", np.ones(shape.hidden, np.float32)
    head = normal(dice, vocabulary, shape.hidden, scale=3.0 / np.sqrt(shape.hidden))
    head[:ADDED_TOKENS] = 0.0
    yield "lm_head.weight", head


def projections(shape: Shape) -> dict[str, tuple[int, int]]:
    """(outputs, inputs) of the linear layers in one block."""
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    return {
        "self_attn.q_proj": (queries, shape.hidden),
        "self_attn.k_proj": (keys, shape.hidden),
        "self_attn.v_proj": (keys, shape.hidden),
        "self_attn.o_proj": (shape.hidden, queries),
        "mlp.gate_proj": (shape.intermediate, shape.hidden),
        "mlp.up_proj": (shape.intermediate, shape.hidden),
        "mlp.down_proj": (shape.hidden, shape.intermediate),
    }


def normal(dice: np.random.Generator, rows: int, columns: int, scale: float) -> Array:
    """Centred weights: (rows, columns)."""
    return dice.standard_normal((rows, columns), dtype=np.float32) * np.float32(scale)


def write_json(path: Path, content: dict[str, object]) -> None:
    """As Hugging Face lays out its files."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
