"""Hugging Face models by name: each head with the batch made for it, and each wrong setting."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn import functional

import zoo  # noqa: F401  # makes a torchvision for another torch harmless
from chainstay.cli.exit_codes import CommandLineError
from chainstay.cli.models.workload import Workload, build_workload
from chainstay.errors import UnsupportedModelError

pytest.importorskip("transformers")

SMALL = "hidden_size=32&num_hidden_layers=2&num_attention_heads=2&intermediate_size=64"
GPT2 = "hf:gpt2?n_layer=2&n_embd=32&n_head=2&vocab_size=64&n_positions=16"
BERT = f"hf:bert?{SMALL}&vocab_size=64&max_position_embeddings=16"
ROBERTA = f"hf:roberta?{SMALL}&vocab_size=64&max_position_embeddings=18"
T5 = "hf:t5?num_layers=1&d_model=32&d_kv=16&d_ff=64&num_heads=2&vocab_size=64"
BART = (
    "hf:bart?encoder_layers=1&decoder_layers=1&d_model=32&encoder_attention_heads=2&"
    "decoder_attention_heads=2&encoder_ffn_dim=64&decoder_ffn_dim=64&vocab_size=64&"
    "max_position_embeddings=16"
)
VIT = f"hf:vit?{SMALL}&image_size=32&patch_size=16"

USUAL = {  # model: by what and in which shape it is called, when nothing is asked for
    GPT2: ("input_ids", (1, 16)),
    BERT: ("input_ids", (1, 16)),
    ROBERTA: ("input_ids", (1, 16)),  # whose first position is 2
    T5: ("input_ids", (1, 512)),  # without a longest sequence
    BART: ("input_ids", (1, 16)),
    "hf:xlnet?n_layer=1&d_model=32&n_head=2&d_inner=64&vocab_size=64": ("input_ids", (1, 512)),
    VIT: ("pixel_values", (8, 3, 32, 32)),
    f"{VIT}&image_size=(32,16)&num_channels=1": ("pixel_values", (8, 1, 32, 16)),
    f"hf:deit?{SMALL}&image_size=32": ("pixel_values", (8, 3, 32, 32)),
    "hf:clip?vision_config={'image_size':32,'num_hidden_layers':1,'hidden_size':24}": (
        "pixel_values", (8, 3, 32, 32),
    ),
}  # fmt: skip


def workload(text: str, *inputs: str, dtype: str = "float32") -> Workload:
    return build_workload(text, inputs, "cpu", dtype)


@pytest.mark.parametrize("text", USUAL)
def test_every_head_is_called_in_its_usual_shape_and_gives_a_loss_to_minimise(text: str) -> None:
    name, shape = USUAL[text]
    trained = workload(text)
    assert trained.model.training
    assert tuple(trained.kwargs[name].shape) == shape
    loss = trained.step()
    assert loss.shape == ()
    assert torch.isfinite(loss)
    loss.backward()
    gradients = [
        parameter.grad for parameter in trained.model.parameters() if parameter.grad is not None
    ]
    assert sum(bool(gradient.any()) for gradient in gradients) > len(gradients) / 2


def test_labels_are_those_of_the_task() -> None:
    """The model's own loss is the one that is found in its scores by hand."""
    plain = "hidden_dropout_prob=0.0&attention_probs_dropout_prob=0.0"
    for text in (f"{GPT2}&resid_pdrop=0.0&embd_pdrop=0.0&attn_pdrop=0.0", f"{BERT}&{plain}"):
        trained = workload(text, "2x5")
        tokens = trained.kwargs["input_ids"]
        scores = trained.model(**trained.kwargs).logits
        if "gpt2" in text:
            scores, tokens = scores[:, :-1], tokens[:, 1:]
        expected = functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())
        torch.testing.assert_close(trained.step(), expected)


def test_what_is_asked_for_is_what_is_made() -> None:
    trained = workload(VIT, "2x3x32x32", dtype="bfloat16")
    assert trained.kwargs["pixel_values"].shape == (2, 3, 32, 32)
    assert {parameter.dtype for parameter in trained.model.parameters()} == {torch.bfloat16}
    assert trained.title == f"{VIT} on 2 x 3 x 32 x 32 bfloat16, the CPU, " + (
        "1 thread" if torch.get_num_threads() == 1 else f"{torch.get_num_threads()} threads"
    )
    assert workload(GPT2, "3x7").kwargs["input_ids"].shape == (3, 7)
    same = [workload(GPT2) for _ in range(2)]
    assert torch.equal(same[0].kwargs["input_ids"], same[1].kwargs["input_ids"])
    for one, other in zip(*(built.model.parameters() for built in same), strict=True):
        assert torch.equal(one, other)


def test_nothing_is_stored_where_nothing_is_run() -> None:
    estimated = build_workload("hf:gpt2?n_layer=2", None, "A100-80GB", "bfloat16")
    assert {parameter.device.type for parameter in estimated.model.parameters()} == {"meta"}
    assert {tensor.device.type for tensor in estimated.kwargs.values()} == {"meta"}
    assert estimated.title.endswith("on 1 x 512 int64, A100-80GB (estimated)")


@pytest.mark.parametrize(
    ("text", "inputs", "message"),
    [
        (GPT2, ["4x16", "4x16"], "2 --input options; a Hugging Face model takes one"),
        (GPT2, ["16"], "--input 16 has 1 sizes; hf:gpt2 takes 2, as in 1x16"),
        (VIT, ["8x32"], "hf:vit takes 4, as in 8x3x32x32"),
        (GPT2, ["1x17"], "takes up to 16; add max_position_embeddings=17 to"),
        (ROBERTA, ["1x17"], "takes up to 16; add max_position_embeddings=19 to"),
        ("hf:wav2vec2", [], "hf:wav2vec2 has no head for text or images that chainstay can train"),
        ("hf:vits", [], "write a file with a function that returns (model, args, kwargs)"),
        (f"{BERT}&task=causal-lm", [], "the configuration of bert has no 'task'"),
        ("hf:gtp2", [], "no model type 'gtp2'; did you mean gpt2"),
        ("hf:zzzzzzzzzzzz", [], "no model type 'zzzzzzzzzzzz'; hf: wants a type such as gpt2"),
        ("hf:gpt2?n_layers=2", [], "of gpt2 has no 'n_layers'; did you mean n_layer"),
        ("hf:gpt2?zzzzzzzzz=2", [], "of gpt2 has no 'zzzzzzzzz'; see its documentation"),
    ],
)
def test_wrong_names_settings_and_shapes_are_told(
    text: str, inputs: list[str], message: str
) -> None:
    with pytest.raises(CommandLineError, match=re.escape(message)):
        workload(text, *inputs)


def test_the_settings_that_are_advised_are_right() -> None:
    """Of sequences that are too long."""
    for text in (GPT2, ROBERTA):
        with pytest.raises(CommandLineError) as refused:
            workload(text, "1x40")
        advised = re.search(r"add (max_position_embeddings=\d+)", str(refused.value))
        assert advised
        longer = re.sub(r"(n_positions|max_position_embeddings)=\d+", advised[1], text)
        assert torch.isfinite(workload(longer, "1x40").step())


@pytest.mark.parametrize("setting", ["n_layer=two", "n_head=5", "vocab_size=-1"])
def test_settings_that_the_library_refuses_are_named(setting: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"hf:gpt2 cannot be built with \{'"):
        workload(f"hf:gpt2?n_embd=32&{setting}")
