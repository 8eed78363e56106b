"""Hugging Face models by type: a configuration, the language or image head, and a batch for it.

Other heads, and inputs of other kinds, are a few lines of Python: ``FILE.py:function``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
import transformers
from torch import nn

from chainstay.cli.exit_codes import CommandLineError, likely_names

_HEADS: Final = (
    "AutoModelForMaskedLM",
    "AutoModelForCausalLM",
    "AutoModelForImageClassification",
)
"""In order of preference: a type that has several heads is trained for the first."""
_USUAL_LENGTH: Final = 512


def build_config(kind: str, settings: Mapping[str, Any]) -> Any:
    """Return the configuration of a type of model, with `settings` in place of defaults.

    Raises:
        CommandLineError: There is no such type, or it has no such setting.
    """
    transformers.logging.set_verbosity_error()  # it comments on settings that it will not need
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if kind not in known:
        hint = likely_names(kind, known.keys(), "hf: wants a type such as gpt2")
        raise CommandLineError(f"transformers has no model type {kind!r}; {hint}")
    default = transformers.AutoConfig.for_model(kind)
    for name in settings:
        if not hasattr(default, name):
            hint = likely_names(name, default.to_dict(), "see its documentation")
            raise CommandLineError(f"the configuration of {kind} has no {name!r}; {hint}")
    config = transformers.AutoConfig.for_model(kind, **settings)
    if hasattr(config, "use_cache"):
        config.use_cache = False  # a cache is for generating
    if getattr(config, "pad_token_id", 0) is None:
        config.pad_token_id = 0  # heads that look for padding need one
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = config.pad_token_id  # labels are shifted behind it
    return config


def model_with_head(config: Any) -> nn.Module:
    """Build a model of that configuration that computes a loss of its own.

    Raises:
        CommandLineError: It has neither a language nor an image head.
    """
    heads = ("AutoModelForSeq2SeqLM",) if config.is_encoder_decoder else _HEADS
    for head in (getattr(transformers, name) for name in heads):
        if type(config) in head._model_mapping:  # noqa: SLF001  # no public name for it
            config.architectures = config.architectures or []  # of many heads, the first is taken
            model: nn.Module = head.from_config(config)
            return model
    raise CommandLineError(
        f"hf:{config.model_type} has no head for text or images that chainstay can train; write a "
        "file with a function that returns (model, args, kwargs): path/to/file.py:function"
    )


def default_shape(model: nn.Module, config: Any) -> tuple[int, ...]:
    """Return the shape of a small batch that the model is made for."""
    if model.main_input_name == "pixel_values":
        seen = getattr(config, "vision_config", config)
        side = getattr(seen, "image_size", 224)
        height, width = side if isinstance(side, list | tuple) else (side, side)
        return (8, getattr(seen, "num_channels", 3), height, width)
    most, _ = _positions(model, config)
    return (1, min(_USUAL_LENGTH, most or _USUAL_LENGTH))


def make_batch(
    model: nn.Module, config: Any, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Return keyword arguments of a call that gives a loss.

    Raises:
        CommandLineError: The shape has too many or too few sizes, or is too long.
    """
    usual, text = default_shape(model, config), "x".join(map(str, shape))
    if len(shape) != len(usual):
        raise CommandLineError(
            f"--input {text} has {len(shape)} sizes; hf:{config.model_type} takes {len(usual)}, "
            f"as in {'x'.join(map(str, usual))}"
        )
    if model.main_input_name == "pixel_values":
        labels = torch.zeros(shape[0], dtype=torch.long, device=device)
        return {"pixel_values": torch.randn(shape, device=device, dtype=dtype), "labels": labels}
    most, reserved = _positions(model, config)
    if most is not None and most < shape[1]:
        raise CommandLineError(
            f"--input {text} has sequences of {shape[1]} tokens, and this hf:{config.model_type} "
            f"takes up to {most}; add max_position_embeddings={shape[1] + reserved} to the "
            "model's settings"
        )
    tokens = torch.randint(config.get_text_config().vocab_size, shape, device=device)
    return {"input_ids": tokens, "labels": tokens}


def _positions(model: nn.Module, config: Any) -> tuple[int | None, int]:
    """Return the most tokens that have a position, or None, and the reserved positions.

    RoBERTa and its kin count positions from behind the one of padding.
    """
    most = getattr(config, "max_position_embeddings", None)
    if not isinstance(most, int) or most <= 0:
        return None, 0
    for name, module in model.named_modules():
        if name.endswith("position_embeddings"):
            padding = getattr(module, "padding_idx", None)
            reserved = 0 if padding is None else int(padding) + 1
            return most - reserved, reserved
    return most, 0
