"""Vision-language models: small, with random weights.

They read sizes of images from their arguments, and put the images' features in the places of
certain words, which values tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

import torch

from zoo import Sample  # torchvision, and whatever imports it, can be imported only after this

__all__ = ["VISION_LANGUAGE_FAMILIES"]

_IMAGE_WORD: Final = 99
_LENGTH: Final = 40
_TEXT: Final = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}
_VISION: Final = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "patch_size": 4,
}


def _captions(features: int) -> dict[str, torch.Tensor]:
    """Return texts of which so many words stand for features of the image."""
    words = torch.randint(5, _IMAGE_WORD, (2, _LENGTH + features))
    words[:, 1 : 1 + features] = _IMAGE_WORD
    return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words.clone()}


def _vision_language(name: str, inputs: dict[str, torch.Tensor], **options: Any) -> Sample:
    kind = getattr(import_module("transformers"), f"{name}ForConditionalGeneration")
    return Sample(kind(kind.config_class(**options)), (), inputs)


def _smolvlm() -> Sample:
    inputs = {**_captions(16), "pixel_values": torch.randn(2, 1, 3, 32, 32)}
    return _vision_language(
        "SmolVLM",
        inputs,
        text_config={**_TEXT, "model_type": "llama"},
        vision_config={**_VISION, "image_size": 32},
        image_token_id=_IMAGE_WORD,
        scale_factor=2,
    )


def _llava_next() -> Sample:
    """Each image is given whole and in four parts; a row of features ends with a word."""
    inputs = {
        **_captions(16 + 8 * 9),
        "pixel_values": torch.randn(2, 5, 3, 16, 16),
        "image_sizes": torch.tensor([[32, 32], [32, 32]]),
    }
    return _vision_language(
        "LlavaNext",
        inputs,
        text_config={**_TEXT, "model_type": "llama"},
        vision_config={**_VISION, "image_size": 16, "model_type": "clip_vision_model"},
        image_grid_pinpoints=[[16, 16], [32, 32]],
        image_token_index=_IMAGE_WORD,
    )


VISION_LANGUAGE_FAMILIES: Final[Mapping[str, Callable[[], Sample]]] = MappingProxyType(
    {"HF SmolVLM": _smolvlm, "HF LLaVA-NeXT": _llava_next}
)
"""By name, what builds a model and a call of it."""
