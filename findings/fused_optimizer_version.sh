#!/usr/bin/env bash
# torch 2.13.0: a fused optimizer (transformers' default is adamw_torch_fused) changes a weight without raising its version counter.
# So autograd's check for in-place changes is silent: a backward pass after the step uses the new weight for the old forward and
# returns a wrong gradient, where the plain optimizer raises RuntimeError. It matters to whoever draws rollouts, or keeps graphs or
# copies of weights (layouts, casts, merged adapters), across steps: nothing that asks the version sees that a step was taken.
set -euo pipefail
place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet "torch==2.13.0" "numpy==2.4.6"
"$place/venv/bin/python" - <<'PYTHON'
import torch


def step_before_backward(fused):
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    x = torch.tensor([3.0], requires_grad=True)
    optimizer = torch.optim.AdamW([weight], lr=0.5, weight_decay=0.0, fused=fused)
    y = weight * x  # the gradient of x is the weight of this forward: 2
    weight.grad = torch.ones(1)
    version = weight._version
    optimizer.step()
    try:
        y.backward()
        found = float(x.grad)
    except RuntimeError as error:
        found = "RuntimeError: " + str(error).split(":")[0]
    return weight._version - version, found


print("torch", torch.__version__)
results = {fused: step_before_backward(fused) for fused in (False, True)}
for fused, (raised, found) in results.items():
    print(f"fused={fused}: version raised by {raised}; gradient (2 is right): {found}")
assert results[False][0] > 0 and str(results[False][1]).startswith("RuntimeError")
assert results[True] == (0, 1.5), "the fused optimizer's step is seen"
PYTHON
