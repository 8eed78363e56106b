"""Commands on models by name: torchvision, timm and Hugging Face, as a new user types them."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

import zoo  # noqa: F401  # makes a torchvision for another torch harmless
from chainstay import ChainProfile, load_plan
from chainstay.cli import app, training_run, training_steps
from chainstay.cli.exit_codes import CommandLineError
from chainstay.cli.models import model_costs
from chainstay.cli.models import named_models as building
from chainstay.cli.models.named_models import ModelSpec, build_model
from chainstay.cli.models.workload import Target, build_workload
from chainstay.runtime.devices import device

GPT2 = "'hf:gpt2?n_layer=2&n_embd=32&n_head=2&vocab_size=64&n_positions=32' -i 2x16"
SMALL = "hidden_size=32&num_hidden_layers=2&num_attention_heads=2&intermediate_size=64"
HEADS = Path(__file__).parent.parent / "support/hf_heads.py"
T5 = "hf:t5?num_layers=2&d_model=32&d_kv=16&d_ff=64&num_heads=2&vocab_size=64"
VIT = f"hf:vit?{SMALL}&image_size=32&patch_size=16&num_labels=3"
TIMM_VIT = "timm:vit_tiny_patch16_224?img_size=32&depth=2&embed_dim=32&num_heads=2&num_classes=3"
SQUEEZENET = "'torchvision:squeezenet1_1?num_classes=3' -i 2x3x32x32"
MODELS = '''
import torch
from torch import nn

class Towers(nn.Module):
    """Two branches that meet."""
    def __init__(self):
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(64, 64), nn.Tanh())))
            for _ in range(2)
        )

    def forward(self, one, other):
        return self.towers[0](one) * self.towers[1](other)

def towers():
    torch.manual_seed(0)
    return Towers(), (torch.randn(32, 64), torch.randn(32, 64))

class Reading(nn.Module):
    """Decides by values, and so is cut at its blocks."""
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

    def forward(self, x):
        if x.sum() > 1e9:
            return x
        for block in self.blocks:
            x = torch.tanh(block(x))
        return x

def reading():
    return Reading(), torch.randn(16, 32)

def embedding():
    """Whose token has no row."""
    return nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 8)), torch.full((2, 3), 7)

def whole():
    return nn.Embedding(5, 8), (torch.ones(2, 3, dtype=torch.long),), {}, lambda out: out.long()
'''


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "broken.py").write_text("def build(:")
    path = list(sys.path)
    yield
    sys.path[:] = path
    sys.modules.pop("models.py", None)


def chainstay(line: str, columns: int = 80) -> Result:
    family = line.split()[1].strip("'").partition(":")[0]
    if family in ("hf", "timm", "torchvision"):
        pytest.importorskip({"hf": "transformers"}.get(family, family))
    return CliRunner().invoke(app, shlex.split(line), env={"COLUMNS": str(columns)})


def done(line: str) -> str:
    result = chainstay(line)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.stdout


def told(line: str, status: int) -> str:
    result = chainstay(line)
    assert result.exit_code == status, result.output + repr(result.exception)
    assert "Traceback" not in result.output
    return " ".join(result.stderr.split())


@pytest.mark.long
@pytest.mark.parametrize(
    "model",
    [
        GPT2,
        SQUEEZENET,
        f"'{VIT}'",
        f"'{HEADS}:audio_classification'",
        f"'{HEADS}:sequence_classification'",
    ],
)
def test_the_least_budget_that_is_named_is_met_bit_for_bit(model: str) -> None:
    line = f"run {model} --repeats 1 --steps 1 --cache costs --json"
    refused = told(f"{line} -b 1%", 3)
    needs = re.search(r"least feasible budget known is [^(]*\((\d+) bytes\)", refused)
    assert needs, refused
    run = json.loads(done(f"{line} -b {needs[1]}"))
    assert run["equal"] is True
    assert run["differences"] == []
    assert run["measured_peak_bytes"] <= run["planned_peak_bytes"] <= int(needs[1])
    assert run["measured_peak_bytes"] <= run["plain_peak_bytes"]


@pytest.mark.long
@pytest.mark.parametrize(
    "model",
    [
        f"'{T5}' -i 2x8",
        f"'{TIMM_VIT}'",
        f"'{HEADS}:token_classification'",
        f"'{HEADS}:question_answering'",
    ],
)
def test_a_budget_that_is_given_to_run_is_kept_bit_for_bit(model: str) -> None:
    text = " ".join(done(f"run {model} -b 100% --repeats 1 --steps 1").split())
    assert ": kept; " in text
    assert "against plain PyTorch: equal, bit for bit" in text


@pytest.mark.long
def test_what_is_said_to_run_next_runs() -> None:
    """Whatever the width of the terminal, it is one line, and names the same model and batch."""
    plan = f"plan {GPT2} -b 80% --repeats 1 --dtype bfloat16 --device cpu -o 'my plan.json'"
    planned = chainstay(plan, columns=40)
    assert planned.exit_code == 0, planned.output
    line = next(row for row in planned.stdout.splitlines() if " run " in row)
    name, *arguments = shlex.split(line)
    assert name == "chainstay"
    run = CliRunner().invoke(app, [*arguments, "--steps", "1", "--no-compare"])
    assert run.exit_code == 0, run.output
    assert "not compared (not asked for)" in " ".join(run.stdout.split())
    line = planned.stdout.splitlines()[-1]
    assert line == "  or: chainstay report 'my plan.json' -o plan.html"
    pytest.importorskip("bokeh")
    assert CliRunner().invoke(app, shlex.split(line)[2:]).exit_code == 0
    assert "<html" in Path("plan.html").read_text()


@pytest.mark.long
def test_every_solver_takes_a_model() -> None:
    pytest.importorskip("ortools")
    for method in ("dp", "weak", "mip", "cpsat"):
        line = f"{GPT2} --repeats 1 --granularity 4 --cache costs -b 90% --method {method}"
        assert " >  recompute " in done(f"plan {line}")
        solution = load_plan("plan.json").solution
        assert solution.peak_bytes <= solution.budget


@pytest.mark.long
def test_offloading_a_model_is_planned_and_run() -> None:
    text = done(f"plan {SQUEEZENET} -b 90% --repeats 1 --offload --link 100GB/s")
    for way in ("keep everything", "torch checkpoint", "recompute", "offload", "both"):
        assert f" {way}" in text
    run = json.loads(done(f"run {SQUEEZENET} -p plan.json --steps 1 --json"))
    assert run["equal"] is True
    assert run["within_budget"] is True


@pytest.mark.long
def test_estimates_for_a_device_that_is_not_here() -> None:
    line = f"{GPT2} --device A100-80GB --dtype bfloat16"
    text = done(f"profile {line}")
    assert "on 2 x 16 int64, A100-80GB (estimated)" in " ".join(text.split())
    assert len(ChainProfile.from_json(Path("profile.json").read_text())) > 8
    planned = done(f"plan {line} -b 120% --offload --link 12GB/s")
    assert "A100-80GB (estimated): " in " ".join(planned.split())
    assert "chainstay run" not in planned, "it cannot be run here"
    assert load_plan("plan.json").fingerprint is None
    assert "leave --by out, or choose --granularity blocks" in told(
        f"plan {line} -b 90% --by blocks", 2
    )
    assert "which nothing runs; use cpu or cuda" in told(f"bench {line}", 2)


@pytest.mark.long
def test_branches_are_planned_apart_and_run() -> None:
    assert "its branches meet" in chainstay("profile models.py:towers --repeats 1").stderr
    text = done("plan models.py:towers -b 90% --repeats 1")
    assert " branches apart " in text
    run = json.loads(done("run models.py:towers -b 90% --repeats 1 --steps 1 --json"))
    assert run["equal"] is True


def test_what_has_no_full_graph_is_cut_at_its_blocks() -> None:
    result = chainstay("profile models.py:reading --repeats 1")
    assert result.exit_code == 0, result.output
    assert "cut by blocks" in result.stderr
    reason = " ".join(result.stderr.split())
    assert "Data-dependent branching" in reason
    assert "(models.py:28, in forward)" in reason
    text = done("plan models.py:reading --repeats 1 -b 120%")
    assert " recompute " in text
    assert "equal, bit for bit" in done("run models.py:reading -p plan.json --steps 1")


@pytest.mark.long
def test_bench_shows_a_table_with_every_way() -> None:
    text = done(f"bench {GPT2} --budgets 90%,1% --steps 1 --segments 1 --repeats 1")
    for way in (r"plain PyTorch +\d.* 0.0%", r"torch checkpoint +\d.*%", r"chainstay 90% +\d.*%"):
        assert re.search(rf"^ *{way} *$", text, re.MULTILINE), text
    assert re.search(r"chainstay 1% .*needs ", text)
    blocks = done("bench models.py:reading --budgets 120% --steps 1 --repeats 1 --json")
    assert [row["way"] for row in json.loads(blocks)] == ["plain PyTorch", "chainstay 120%"]


def test_a_model_that_fails_on_its_batch_is_told_from_one_that_chainstay_fails_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = told("plan models.py:embedding -b 90% --repeats 1", 4)
    assert "models.py:embedding on 2 x 3 int64" in message
    assert "index out of range" in message

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError(broken.text)  # type: ignore[attr-defined]

    monkeypatch.setattr(model_costs, "measure_model", broken)
    broken.text = "a mistake of ours"  # type: ignore[attr-defined]
    result = chainstay("plan models.py:reading -b 90%")
    assert isinstance(result.exception, RuntimeError), "not told as if it were the user's"
    broken.text = "DefaultCPUAllocator: not enough memory"  # type: ignore[attr-defined]
    assert "take a smaller --input, or plan without" in told("plan models.py:reading -b 90%", 4)


def test_plain_training_that_does_not_fit_or_repeat_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done("plan models.py:reading --repeats 1 -b 120%")
    line = "run models.py:reading -p plan.json --steps 1"
    with monkeypatch.context() as patch:
        patch.setattr(training_run, "fits_here", lambda *_: False)
        assert "which is not free here)" in " ".join(done(line).split())
    count = iter(range(100))
    plain = training_steps.TrainingRecord.from_steps.__func__  # type: ignore[attr-defined]

    def unsteady(cls: type, *args: Any) -> training_steps.TrainingRecord:
        found: training_steps.TrainingRecord = plain(cls, *args)
        return training_steps.TrainingRecord((torch.tensor(float(next(count))),), found.tensors)

    monkeypatch.setattr(training_steps.TrainingRecord, "from_steps", classmethod(unsteady))
    assert "plain PyTorch differs from itself" in " ".join(done(line).split())


@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        (f"profile '{TIMM_VIT}' -i 2x3x48x48", 4, "Input height (48) doesn't match model (32)"),
        ("profile timm:resnet19", 2, "timm has no model 'resnet19'; did you mean resnet18"),
        ("profile timm:zzzzzzzz", 2, "timm has no model 'zzzzzzzz'; it has "),
        ("profile torchvision:alexnet?colour=3", 4, "unexpected keyword argument 'colour'"),
        ("profile torchvision:r3d_18", 2, "the shape of a batch is not known; write --input"),
        ("profile models.py:whole", 4, ""),
        (
            "profile models.py:reeding",
            2,
            "models.py has no function 'reeding'; did you mean reading",
        ),
        ("profile broken.py:build", 4, "broken.py cannot be imported: SyntaxError: "),
        ("profile models.py:reading?colour=3", 4, "unexpected keyword argument 'colour'"),
        (f"plan {GPT2} -b 90% --offload --host-budget lots", 2, "--host-budget is 'lots', must be"),
        (f"plan {GPT2} -b 90% --host-budget 1GiB", 2, "with --offload only"),
        ("profile models.py:reading -o .", 2, "--output . is a folder, must be a file"),
        ("profile models.py:reading -i 99999999x99999999", 2, "elements, at most"),
        ("profile hf:clipseg", 2, "no head for text or images that chainstay can train"),
    ],
)
def test_wrong_lines_are_told(line: str, status: int, message: str) -> None:
    assert message in told(line, status)


def test_models_are_called_with_images_of_the_size_that_they_are_made_for() -> None:
    pytest.importorskip("torchvision.models")
    pytest.importorskip("timm")
    for text, size in {
        "torchvision:vit_b_16?image_size=32": (8, 3, 32, 32),
        "torchvision:inception_v3?init_weights=False": (8, 3, 299, 299),
        "torchvision:lraspp_mobilenet_v3_large": (8, 3, 224, 224),
        "timm:resnet10t?in_chans=1": (8, 1, 176, 176),
        "timm:vit_tiny_patch16_224?img_size=(32,16)&depth=1": (8, 3, 32, 16),
    }.items():
        trained = build_workload(text, None, "A100-80GB", "float32")
        assert tuple(trained.args[0].shape) == size, text
        assert trained.args[0].device.type == "meta"
    pixels = build_workload(
        "torchvision:lraspp_mobilenet_v3_large", ["2x3x32x32"], "cpu", "float32"
    )
    expected = 2 * nn.functional.cross_entropy(torch.zeros(1, 21), torch.tensor([0]))
    assert 0 < pixels.step().item() < 2 * float(expected), "scores for 21 classes, for each pixel"


def test_a_library_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(CommandLineError, match="run: pip install timm"):
        build_model(ModelSpec.parse("timm:resnet18"))


def test_a_torchvision_without_its_operators_is_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its wheel is built for CUDA: beside another torch, only its operators are missing."""
    defined: list[str] = []
    raised: Exception = RuntimeError("operator torchvision::nms does not exist")

    def fails(_: str) -> None:
        raise raised

    monkeypatch.setattr(building.importlib, "import_module", fails)  # type: ignore[attr-defined]
    monkeypatch.setattr(building, "_OPERATORS", SimpleNamespace(define=defined.append))
    monkeypatch.setattr(torch.ops, "torchvision", SimpleNamespace(qnms=None))
    building._mend_torchvision()  # as before each import
    assert [schema.partition("(")[0] for schema in defined] == ["nms"], (
        "what is there is left alone"
    )
    raised = RuntimeError("something else")
    with pytest.raises(RuntimeError, match="something else"):
        building._mend_torchvision()


def test_devices_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(Target.from_name("cpu")).startswith("the CPU, ")
    assert Target.from_name("A100-80GB").device.type == "meta"
    device._accelerator_at.cache_clear()
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda d: f"GPU {d.index}")
    assert str(Target.from_name("cuda:1")) == "GPU 1"
    assert str(Target.from_name("cuda")) == "GPU 0"
    with pytest.raises(CommandLineError, match="this machine has 2 CUDA devices"):
        Target.from_name("cuda:2")
    device._accelerator_at.cache_clear()
