"""Models that the tests' zoo does not have: small, with random weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import nn

from benchmarks.models.family_modules import MODULE_FAMILIES
from benchmarks.models.family_vision_language import VISION_LANGUAGE_FAMILIES
from zoo import Sample  # torchvision, and whatever imports it, can be imported only after this

__all__ = ["FAMILIES"]

_IMAGE: Final = 64
_WORDS: Final = 100
_LENGTH: Final = 32


def _of_torchvision(name: str, size: int = _IMAGE, batch: int = 2, **options: Any) -> Sample:
    models = import_module("torchvision.models")
    model = models.get_model(name, weights=None, num_classes=10, **options)
    return Sample(model, (torch.randn(batch, 3, size, size),))


def _of_videos() -> Sample:
    video = import_module("torchvision.models.video")
    return Sample(video.r3d_18(num_classes=10), (torch.randn(1, 3, 8, 32, 32),))


def _of_timm(name: str, size: int = _IMAGE, batch: int = 2, **options: Any) -> Sample:
    timm = import_module("timm")
    model = timm.create_model(name, pretrained=False, num_classes=10, **options)
    return Sample(model, (torch.randn(batch, 3, size, size),))


def _of_transformers(
    name: str,
    inputs: Callable[[], Mapping[str, torch.Tensor]],
    **options: Any,
) -> Sample:
    """The model of that class, with its own kind of configuration."""
    kind = getattr(import_module("transformers"), name)
    return Sample(kind(kind.config_class(**options)), (), inputs())


def _text(batch: int = 2) -> dict[str, torch.Tensor]:
    words = torch.randint(5, _WORDS, (batch, _LENGTH))
    return {"input_ids": words, "labels": words}


def _masked_text() -> dict[str, torch.Tensor]:
    text = _text()
    return {**text, "attention_mask": torch.ones_like(text["input_ids"])}


def _pixels(size: int = _IMAGE) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, size, size)}


def _labelled_pixels(size: int = _IMAGE) -> dict[str, torch.Tensor]:
    return {**_pixels(size), "labels": torch.tensor([0, 1])}


def _map_of_pixels() -> dict[str, torch.Tensor]:
    return {**_pixels(), "labels": torch.randint(0, 2, (2, _IMAGE, _IMAGE))}


def _sound() -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(2, 4000), "labels": torch.tensor([0, 1])}


def _spectrum() -> dict[str, torch.Tensor]:
    return {"input_features": torch.randn(1, 20, 200), "labels": _text(1)["labels"]}


_SPECIAL: Final = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SMALL: Final = {
    "vocab_size": _WORDS,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_PAIR: Final = {
    **_SPECIAL,
    "vocab_size": _WORDS,
    "d_model": 64,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "use_cache": False,
    "decoder_start_token_id": 2,
}


def _decoder(name: str, **options: Any) -> Sample:
    settings = {**_SMALL, **_SPECIAL, "num_key_value_heads": 2, "use_cache": False, **options}
    return _of_transformers(f"{name}ForCausalLM", _text, **settings)


def _encoder(name: str, **options: Any) -> Sample:
    return _of_transformers(f"{name}ForMaskedLM", _masked_text, **{**_SMALL, **options})


class _Recurrent(nn.Module):
    """An LSTM, whose steps no plan can take apart."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_WORDS, 32)
        self.recur = nn.LSTM(32, 64, 3, batch_first=True, dropout=0.1)
        self.head = nn.Linear(64, _WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Scores of every word."""
        states, _ = self.recur(self.embed(words))
        scores: torch.Tensor = self.head(states)
        return scores


class _Repeated(nn.Module):
    """One layer, eight times over."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(16, 32), nn.Linear(32, 4)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of every sequence."""
        x = self.enter(x)
        for _ in range(8):
            x = self.layer(x)
        scores: torch.Tensor = self.leave(x.mean(1))
        return scores


class _Translator(nn.Module):
    """Torch's own Transformer, which looks at the values of its mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(_WORDS, 64), nn.Linear(64, _WORDS)
        self.body = nn.Transformer(64, 4, 4, 4, 128, batch_first=True)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Scores of every word of the target."""
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        scores: torch.Tensor = self.head(
            self.body(self.embed(source), self.embed(target), tgt_mask=mask)
        )
        return scores


class _Graph(nn.Module):
    """Messages along the edges of a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(8))

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """New features of every node."""
        for layer in self.layers:
            messages = layer(nodes)[edges[0]]
            nodes = torch.relu(nodes + torch.zeros_like(nodes).index_add(0, edges[1], messages))
        return nodes


class _Spectral(nn.Module):
    """Products of complex spectra beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))
        self.filters = nn.ParameterList(
            0.1 * torch.randn(17, dtype=torch.complex64) for _ in range(6)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As large as `x`."""
        for layer, spectrum in zip(self.layers, self.filters, strict=True):
            x = x + torch.fft.irfft(torch.fft.rfft(x) * spectrum, n=32)
            x = x + nn.functional.silu(layer(x))
        return x


class _Waves(nn.Module):
    """Dilated convolutions, their weights in a parametrization."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv1d(1, 16, 1), nn.Conv1d(16, 1, 1)
        self.layers = nn.ModuleList(
            nn.utils.parametrizations.weight_norm(
                nn.Conv1d(16, 16, 3, padding=2**depth, dilation=2**depth)
            )
            for depth in range(6)
        )

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        """As long as `sound`."""
        x = self.enter(sound)
        for layer in self.layers:
            x = x + torch.tanh(layer(x)) * torch.sigmoid(layer(x))
        out: torch.Tensor = self.leave(x)
        return out


def _critic() -> Sample:
    """Spectral norms, whose buffers every forward changes."""
    blocks = (
        nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Conv2d(8, 8, 3, padding=1)), nn.ReLU()
        )
        for _ in range(8)
    )
    return Sample(
        nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *blocks), (torch.randn(2, 3, 16, 16),)
    )


def _words() -> torch.Tensor:
    return _text()["input_ids"]


FAMILIES: Final[Mapping[str, Callable[[], Sample]]] = MappingProxyType(
    {
        "torchvision MobileNetV3": partial(_of_torchvision, "mobilenet_v3_small"),
        "torchvision EfficientNet-B0": partial(_of_torchvision, "efficientnet_b0"),
        "torchvision EfficientNetV2-S": partial(_of_torchvision, "efficientnet_v2_s"),
        "torchvision RegNet": partial(_of_torchvision, "regnet_y_400mf"),
        "torchvision Swin": partial(_of_torchvision, "swin_t"),
        "torchvision Swin V2": partial(_of_torchvision, "swin_v2_t"),
        "torchvision MaxViT": partial(_of_torchvision, "maxvit_t", 224, 1),
        "torchvision GoogLeNet": partial(_of_torchvision, "googlenet", init_weights=False),
        "torchvision Inception v3, two heads": partial(
            _of_torchvision, "inception_v3", 299, init_weights=False
        ),
        "torchvision SqueezeNet": partial(_of_torchvision, "squeezenet1_1"),
        "torchvision ShuffleNet": partial(_of_torchvision, "shufflenet_v2_x1_0"),
        "torchvision AlexNet": partial(_of_torchvision, "alexnet", 96),
        "torchvision ConvNeXt": partial(_of_torchvision, "convnext_tiny"),
        "torchvision ResNeXt": partial(_of_torchvision, "resnext50_32x4d"),
        "torchvision Wide ResNet": partial(_of_torchvision, "wide_resnet50_2", 32),
        "torchvision FCN": partial(_of_torchvision, "fcn_resnet50", weights_backbone=None),
        "torchvision DeepLab": partial(
            _of_torchvision, "deeplabv3_mobilenet_v3_large", weights_backbone=None
        ),
        "torchvision LR-ASPP": partial(
            _of_torchvision, "lraspp_mobilenet_v3_large", weights_backbone=None
        ),
        "torchvision R3D": _of_videos,
        "timm MLP-Mixer": partial(_of_timm, "mixer_s32_224", 224),
        "timm XCiT": partial(_of_timm, "xcit_nano_12_p8_224", 224, 1),
        "timm DeiT": partial(_of_timm, "deit_tiny_patch16_224", 224),
        "timm BEiT": partial(
            _of_timm, "beit_base_patch16_224", 224, 1, embed_dim=48, num_heads=4, depth=6
        ),
        "timm EfficientNet-Lite": partial(_of_timm, "efficientnet_lite0"),
        "timm ResNetV2": partial(_of_timm, "resnetv2_50"),
        "timm NF-ResNet": partial(_of_timm, "nf_resnet26"),
        "timm CoAtNet": partial(_of_timm, "coatnet_0_rw_224", 224, 1),
        "timm EVA-02": partial(_of_timm, "eva02_tiny_patch14_224", 224, 1),
        "timm PVT v2": partial(_of_timm, "pvt_v2_b0"),
        "timm HRNet": partial(_of_timm, "hrnet_w18_small"),
        "timm DLA": partial(_of_timm, "dla34"),
        "timm GhostNet": partial(_of_timm, "ghostnet_100"),
        "timm ViT, stochastic depth": partial(
            _of_timm, "vit_tiny_patch16_224", 224, drop_path_rate=0.2
        ),
        "HF Mistral": partial(_decoder, "Mistral", sliding_window=16),
        "HF Qwen2": partial(_decoder, "Qwen2"),
        "HF Qwen3": partial(_decoder, "Qwen3", head_dim=16),
        "HF Gemma": partial(_decoder, "Gemma", head_dim=16),
        "HF Gemma 2": partial(_decoder, "Gemma2", head_dim=16),
        "HF Phi": partial(_decoder, "Phi", num_key_value_heads=4),
        "HF Falcon": partial(_decoder, "Falcon"),
        "HF Mixtral": partial(_decoder, "Mixtral", num_local_experts=4),
        "HF OPT": partial(_decoder, "OPT", ffn_dim=128, word_embed_proj_dim=64),
        "HF BLOOM": partial(_decoder, "Bloom", n_layer=6, n_head=4),
        "HF GPT-NeoX": partial(_decoder, "GPTNeoX"),
        "HF GPT-J": partial(
            _decoder, "GPTJ", n_embd=64, n_layer=6, n_head=4, rotary_dim=8, n_positions=64
        ),
        "HF Mamba, without kernels": partial(_decoder, "Mamba", num_hidden_layers=4, state_size=8),
        "HF RoBERTa": partial(_encoder, "Roberta"),
        "HF DistilBERT": partial(
            _encoder, "DistilBert", dim=64, n_layers=6, n_heads=4, hidden_dim=128
        ),
        "HF MobileBERT": partial(
            _encoder, "MobileBert", embedding_size=32, intra_bottleneck_size=32
        ),
        "HF Longformer": partial(_encoder, "Longformer", attention_window=8),
        "HF ALBERT": partial(_encoder, "Albert", embedding_size=32),
        "HF ELECTRA": partial(_encoder, "Electra", embedding_size=32),
        "HF DeBERTa v2": partial(
            _encoder, "DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"]
        ),
        "HF ModernBERT": partial(
            _encoder, "ModernBert", **_SPECIAL, cls_token_id=1, sep_token_id=2
        ),
        "HF BART": partial(
            _of_transformers,
            "BartForConditionalGeneration",
            _text,
            **_PAIR,
            max_position_embeddings=64,
            forced_eos_token_id=2,
        ),
        "HF Whisper": partial(
            _of_transformers,
            "WhisperForConditionalGeneration",
            _spectrum,
            **_PAIR,
            num_mel_bins=20,
            max_source_positions=100,
            max_target_positions=64,
        ),
        "HF wav2vec 2.0": partial(
            _of_transformers,
            "Wav2Vec2ForSequenceClassification",
            _sound,
            hidden_size=64,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=128,
            conv_dim=(32, 32, 32),
            conv_stride=(5, 4, 4),
            conv_kernel=(10, 4, 4),
            num_feat_extract_layers=3,
            apply_spec_augment=False,
            layerdrop=0.0,
        ),
        "HF SegFormer": partial(
            _of_transformers,
            "SegformerForSemanticSegmentation",
            _map_of_pixels,
            hidden_sizes=[8, 16, 32, 64],
            depths=[2, 2, 2, 2],
            decoder_hidden_size=32,
        ),
        "HF Swin": partial(
            _of_transformers,
            "SwinForImageClassification",
            _labelled_pixels,
            image_size=64,
            embed_dim=24,
            depths=[2, 2],
            num_heads=[2, 4],
            window_size=4,
        ),
        "HF ViT-MAE": partial(
            _of_transformers,
            "ViTMAEForPreTraining",
            _pixels,
            hidden_size=48,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=96,
            image_size=64,
            decoder_hidden_size=32,
            decoder_num_hidden_layers=2,
            decoder_num_attention_heads=4,
            decoder_intermediate_size=64,
        ),
        "HF DINOv2": partial(
            _of_transformers,
            "Dinov2ForImageClassification",
            partial(_labelled_pixels, 56),
            hidden_size=48,
            num_hidden_layers=4,
            num_attention_heads=4,
            image_size=56,
        ),
        "LSTM": lambda: Sample(_Recurrent(), (_words(),)),
        "one layer eight times": lambda: Sample(_Repeated(), (torch.randn(4, 16, 16),)),
        "torch.nn.Transformer": lambda: Sample(_Translator(), (_words(), _words())),
        "messages in a graph": lambda: Sample(
            _Graph(), (torch.randn(40, 32), torch.randint(0, 40, (2, 100)))
        ),
        "complex spectra": lambda: Sample(_Spectral(), (torch.randn(8, 32),)),
        "weight norm": lambda: Sample(_Waves(), (torch.randn(2, 1, 256),)),
        "spectral norm": _critic,
        **VISION_LANGUAGE_FAMILIES,
        **MODULE_FAMILIES,
    }
)
"""By name, what builds a model and a call of it."""
